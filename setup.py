"""The long description: README.md, with the names of the pages that it links in place of the links.

A page of a package index is not beside the files of the repository, so such links would lead nowhere there. All other
metadata is in setup.cfg.
"""

import re
from pathlib import Path

from setuptools import setup

_LINK_TO_FILE = re.compile(r"\[([^\]]*)\]\((?!https?://)[^)\s]+\)")

setup(long_description=_LINK_TO_FILE.sub(r"\1", (Path(__file__).parent / "README.md").read_text(encoding="utf-8")))
