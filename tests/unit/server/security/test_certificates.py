"""Rules for the principals of certificates: what they make of subjects, and which ones are refused."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.errors import InvalidOptionError, InvalidRecordError
from pyspark_kafkalog.server.security.certificates import PrincipalMapping


@pytest.mark.parametrize(
    ("rules", "subject", "principal"),
    [
        ("DEFAULT", "CN=app,O=x", "User:CN=app,O=x"),
        ("RULE:^CN=(.*?),OU=Services.*$/$1/L,DEFAULT", "CN=App,OU=Services,O=x", "User:app"),
        ("RULE:^CN=(.*?),OU=Services.*$/$1/L,DEFAULT", "CN=App,OU=People", "User:CN=App,OU=People"),
        ("RULE:UID=(\\d+).*/u$1/,RULE:CN=(.*)/$1/U", "CN=app", "User:APP"),
        ("RULE:CN=(.*),(.*)/$2$12\\$1\\/, RULE:x/y/", "CN=app,O=x", None),
        ("RULE:CN=(.*),(.*)/$2$12\\$1\\//, RULE:x/y/", "CN=app,O=x", "User:O=xapp2$1/"),
    ],
)
def test_first_rule_that_matches_the_whole_subject_makes_the_principal(
    rules: str, subject: str, principal: str | None
) -> None:
    if principal is None:
        with pytest.raises(InvalidOptionError, match="no rule for principals"):
            PrincipalMapping.parse(rules)
    else:
        assert PrincipalMapping.parse(rules).principal(subject) == principal


def test_subject_without_a_rule_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="no rule applies to the subject 'CN=app,O=x'"):
        PrincipalMapping.parse("RULE:CN=([^,]*)/$1/").principal("CN=app,O=x")


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        ("", "no rule"),
        ("default", "no rule"),
        ("RULE:CN=(.*)/$1", "no rule"),
        ("RULE:CN=(.*)/$1/X", "no rule"),
        ("DEFAULT DEFAULT", "no rule"),
        ("DEFAULT,RULE:a/b/Lx", "no rule"),
        ("RULE:CN=(.*/$1/", "not supported"),
        ("RULE:CN=\\p{Alpha}+/x/", r"from '\\\\p\{Alpha\}\+' on"),
        ("RULE:CN=.*+/x/", "not supported"),
        ("RULE:(a)\\1/x/", "not supported"),
        ("RULE:[a-z&&[b]]/x/", "not supported"),
        ("RULE:CN=(.*)/$2/", "refers to no group"),
        ("RULE:CN=(.*)/a$/", "refers to no group"),
        ("RULE:CN=(.*)/${name}/", "refers to no group"),
    ],
)
def test_rule_that_may_mean_something_else_to_a_broker_is_refused(rules: str, problem: str) -> None:
    with pytest.raises(InvalidOptionError, match=problem):
        PrincipalMapping.parse(rules)
