"""What is read without tomllib is what tomllib reads."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.base import toml_subset

#: What ``nvidia-ctk config`` prints (toolkit 1.17 and later), comments included.
SHIPPED = """#accept-nvidia-visible-devices-as-volume-mounts = false
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
ldconfig = "@/sbin/ldconfig"
load-kmods = true

[nvidia-container-runtime]
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
spec-dirs = ["/etc/cdi", "/var/run/cdi"]
"""


def test_the_shipped_file_is_in_the_subset() -> None:
    assert toml_subset.loads(SHIPPED) == tomllib.loads(SHIPPED)


OUTSIDE = [
    'a = "x" # comment', "a = 1", "a.b = true", 'a = "\\u0041"', "a = 'x'", 'a = """x"""', "a = [", "[[t]]",
    'a = "é"', "a = true\na = true", "[t]\n[t]", "a = true\n[a]", '"a" = true', "a = { b = true }", "a", "= true",
    "a = [true]", 'a = ["x", ]', "[t] # c", "[a.]", "a = true\r\n", "# \x01", 'a = "\t"', "a = ", 'a = ["x]',
]  # fmt: skip


@pytest.mark.parametrize("text", OUTSIDE)
def test_everything_else_is_left_to_tomllib(text: str) -> None:
    assert toml_subset.loads(text) is None


LINES = st.sampled_from(
    ["", "# c", "[a]", "[a.b]", "[b]", "[ a . c ]", 'x = "y"', "x = true", "y=false", 'z = ["p", "q"]', "z = []",
     'w = "a # b"', "b = true", 'a = "t"', *OUTSIDE]
)  # fmt: skip


@given(st.lists(LINES, max_size=8).map("\n".join) | st.text(alphabet='ab=[]".# \t\n,true\\', max_size=30))
def test_whatever_is_read_is_what_tomllib_reads(text: str) -> None:
    found = toml_subset.loads(text)
    if found is not None:
        assert found == tomllib.loads(text)
