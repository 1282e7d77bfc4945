"""--user: the table of libnvidia-container.md 1.2."""

from __future__ import annotations

import grp
import pwd

import pytest

from nvc.base.errors import InputError
from nvc.request.userspec import parse_user

ROOT = pwd.getpwuid(0)
#: One that packages do not come and go with.
GROUP = min((group for group in grp.getgrall() if group.gr_gid != 0), key=lambda group: group.gr_gid)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("1000:2000", (1000, 2000), id="numbers"),
        pytest.param("0", (0, ROOT.pw_gid), id="user-alone-brings-the-primary-group"),
        pytest.param("0:", (0, ROOT.pw_gid), id="an-empty-group-is-none"),
        pytest.param("root", (0, ROOT.pw_gid), id="name"),
        pytest.param(f"root:{GROUP.gr_name}", (0, GROUP.gr_gid), id="names"),
        pytest.param(f"1234567:{GROUP.gr_name}", (1234567, GROUP.gr_gid), id="an-unknown-number-with-a-group"),
        pytest.param("root:7", (0, 7), id="name-and-number"),
        pytest.param("007:008", (7, 8), id="leading-zeros-are-decimal"),
        pytest.param("4294967294:4294967294", (2**32 - 2, 2**32 - 2), id="the-highest-ids"),
    ],
)
def test_parse_user(text: str, expected: tuple[int, int]) -> None:
    assert parse_user(text) == expected


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("", "no such file or directory", id="nothing"),
        pytest.param("1234567", "no such file or directory", id="unknown-uid-alone"),
        pytest.param("no-such-user", "no such file or directory", id="unknown-user"),
        pytest.param("0:no-such-group", "no such file or directory", id="unknown-group"),
        pytest.param("ro\0ot", "no such file or directory", id="nul-in-a-user"),
        pytest.param("0:ro\0ot", "no such file or directory", id="nul-in-a-group"),
        pytest.param("0x10", "invalid argument", id="hexadecimal"),
        pytest.param("1000abc", "invalid argument", id="trailing-junk"),
        pytest.param("0:0abc", "invalid argument", id="trailing-junk-in-group"),
        pytest.param("1:2:3", "invalid argument", id="three-parts"),
        pytest.param("-1", "invalid argument", id="negative"),
        pytest.param(":5", "invalid argument", id="group-alone"),
        pytest.param("99999999999", "numerical result out of range", id="overflow"),
        pytest.param("9" * 5000, "numerical result out of range", id="five-thousand-digits"),
        pytest.param("4294967295", "numerical result out of range", id="minus-one-as-uid"),
        pytest.param("0:4294967295", "numerical result out of range", id="minus-one-as-gid"),
    ],
)
def test_refused(text: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_user(text)
    assert str(caught.value) == f"input error: parse user/group failed: {why}"
