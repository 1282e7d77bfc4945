"""Driver capabilities: the seven words with which a container says which parts of the driver it wants.

Not Linux capabilities (``nvc.linux.rights``). Pure.
"""

from __future__ import annotations

from nvc.base.errors import InputError
from nvc.base.nearest import did_you_mean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from nvc.model import DeviceNode, DriverFile

#: Every word with what it is for, in the order in which texts show them.
MEANINGS: dict[str, str] = {
    "compute": "CUDA and OpenCL applications",
    "utility": "nvidia-smi and NVML",
    "video": "video encoding and decoding",
    "graphics": "OpenGL and Vulkan applications",
    "display": "X11 displays",
    "ngx": "NGX (DLSS and other deep-learning features)",
    "compat32": "32-bit applications",
}
WORDS: tuple[str, ...] = tuple(MEANINGS)

#: ``DriverFile.capability`` of a file that no table knows: for containers that have every driver capability.
EVERY = "every"
#: Libraries that a word brings along besides its own (libnvidia-container.md 2.2.1: `video` sets the bit of the
#: compute libraries but
#: not that of the compute binaries, `display` the bit of the graphics libraries).
_IMPLIED_LIBRARIES = {"video": "compute", "display": "graphics"}


class DriverCapabilities:
    """A frozen set of the words of ``WORDS``.

    Raises InputError for any other word.
    """

    __slots__ = ("_words",)

    def __init__(self, words: Iterable[str] = ()) -> None:
        chosen = frozenset(words)
        for word in chosen:
            if word not in MEANINGS:
                raise InputError(
                    f"unknown driver capability: {word}",
                    hint=did_you_mean(word, WORDS, otherwise=f"known are: {', '.join(WORDS)}"),
                )
        self._words = chosen

    @classmethod
    def parse(cls, text: str) -> DriverCapabilities:
        """Read a comma list such as ``compute,utility``; ``all`` is every word; empty items are skipped.

        Raises InputError for an unknown word.
        """
        words = [word for word in (item.strip() for item in text.split(",")) if word]
        return cls(WORDS if "all" in words else words)

    @property
    def libraries(self) -> frozenset[str]:
        """The words whose libraries (and sockets and device nodes) are wanted, implied ones included."""
        return self._words | {_IMPLIED_LIBRARIES[word] for word in self._words if word in _IMPLIED_LIBRARIES}

    def __contains__(self, word: object) -> bool:
        return word in self._words

    def __iter__(self) -> Iterator[str]:
        return (word for word in WORDS if word in self._words)

    def __len__(self) -> int:
        return len(self._words)

    def __or__(self, other: DriverCapabilities) -> DriverCapabilities:
        return DriverCapabilities(self._words | other._words)

    def __and__(self, other: DriverCapabilities) -> DriverCapabilities:
        return DriverCapabilities(self._words & other._words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DriverCapabilities) and self._words == other._words

    def __hash__(self) -> int:
        return hash(self._words)

    def __str__(self) -> str:
        return ",".join(self)

    def __repr__(self) -> str:
        return f"DriverCapabilities({tuple(self)!r})"


def wants(capabilities: DriverCapabilities, file: DriverFile) -> bool:
    """Whether a container with these capabilities gets this driver file (libnvidia-container.md 3.3, 3.6 and 5.2)."""
    if file.kind == "library32" and "compat32" not in capabilities:
        return False
    if file.capability == "":
        return True
    if file.capability == EVERY:
        return len(capabilities) == len(WORDS)
    if file.kind == "binary":
        return file.capability in capabilities
    return file.capability in capabilities.libraries


def wants_node(capabilities: DriverCapabilities, node: DeviceNode) -> bool:
    """Whether a container with these capabilities gets this common device node (libnvidia-container.md 3.7).

    nvidia-uvm and nvidia-uvm-tools belong to compute (so to video as well), nvidia-modeset to display, any other
    (nvidiactl, dxg) to every container.
    """
    name = node.path.rpartition("/")[2]
    if name in ("nvidia-uvm", "nvidia-uvm-tools"):
        return "compute" in capabilities.libraries
    if name == "nvidia-modeset":
        return "display" in capabilities
    return True
