"""Charts of logs over time, with matplotlib: the records or bytes of their batches, by the times of the records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

import numpy as np
import pyarrow as pa

from pyspark_kafkalog.notebook.tables import import_package
from pyspark_kafkalog.values import check_number, check_one_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Measure: TypeAlias = Literal["records", "bytes"]
_COLUMNS: Final = {"records": "records_count", "bytes": "size_bytes"}


def plot_batches(name: str, batches: Sequence[pa.Table], *, of: Measure, bins: int, axes: Axes | None) -> Axes:
    """Draw the batches, tables of BATCHES_SCHEMA, as steps with `name` as their label; into new axes if there are none.

    A batch counts at its largest timestamp; markers of transactions, and batches without a timestamp, are left out.
    Raises MissingPackageError without matplotlib, InvalidOptionError for another measure or number of bins.
    """
    check_one_of("of", of, get_args(Measure))
    check_number("bins", bins, least=1)
    if axes is None:
        _, axes = import_package("matplotlib.pyplot", "matplotlib").subplots(figsize=(9, 3))
        axes.set(xlabel="time (UTC)", ylabel=of)
        axes.spines[["top", "right"]].set_visible(False)
    table = pa.concat_tables(batches)
    kept = np.asarray(table["kind"]) == "data"
    kept &= ~np.asarray(table["max_timestamp"].is_null())
    times_ms = np.asarray(table["max_timestamp"].cast(pa.int64()).fill_null(0))[kept]
    amounts, edges = np.histogram(times_ms, bins=bins, weights=np.asarray(table[_COLUMNS[of]])[kept])
    axes.stairs(amounts, edges.astype("datetime64[ms]"), label=name)
    axes.legend(frameon=False)
    return axes
