"""The exception tree. Only a command's ``main`` prints one of these or turns it into an exit code.

    NvcError                   exit 1
    +- UsageError              (usage)                wrong options or arguments
    +- InputError              "input error"          a value the user gave cannot be read
    +- PrivilegeError          "permission error"
    +- InitializationError     "initialization error" driver service, kernel modules, debug log
    +- ContainerError          "container error"      pid, rootfs, namespaces, cgroup of the container
    +- DetectionError          "detection error"      what is installed on the host
    +- DeviceError             "device error"         a GPU or MIG device that does not exist
    +- MigConfigError          "mig-config error"
    +- MigMonitorError         "mig-monitor error"
    +- ImexError               "error parsing IMEX info"
    +- RequirementError        "requirement error"
    +- MountError              "mount error"          anything done to the container
    +- LdcacheError            "ldcache error"
    +- AgentError              "agent error"          the agent, its sockets, the guard of a container

The stage words are those that nvidia-container-cli prints; people and scripts grep for them
(libnvidia-container.md 1.10).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar


class NvcError(Exception):
    """A failure with a message for people.

    ``message`` names the thing and the reason (one line). ``hint`` says what to do about it, or is empty.
    """

    stage: ClassVar[str] = ""
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.stage}: {self.message}" if self.stage else self.message


class UsageError(NvcError):
    stage = ""


class InputError(NvcError):
    stage = "input error"


class PrivilegeError(NvcError):
    stage = "permission error"


class InitializationError(NvcError):
    stage = "initialization error"


class ContainerError(NvcError):
    stage = "container error"


class DetectionError(NvcError):
    stage = "detection error"


class DeviceError(NvcError):
    stage = "device error"


class MigConfigError(NvcError):
    stage = "mig-config error"


class MigMonitorError(NvcError):
    stage = "mig-monitor error"


class ImexError(NvcError):
    stage = "error parsing IMEX info"


class RequirementError(NvcError):
    stage = "requirement error"


class MountError(NvcError):
    stage = "mount error"


class LdcacheError(NvcError):
    stage = "ldcache error"


class AgentError(NvcError):
    stage = "agent error"


#: Stage word -> class, for errors that crossed a process boundary.
BY_STAGE: dict[str, type[NvcError]] = {cls.stage: cls for cls in NvcError.__subclasses__() if cls.stage}


#: What a foreign text keeps in a message. Not what divides words, lines and names in files of the host, or means
#: something to a shell: a message may get into one of them.
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,:=<>!+-%@#")


def shown(text: str, longest: int = 48) -> str:
    """A container's text for a message: quoted, not too long, and of it only _PLAIN as it is."""
    cut = text if len(text) <= longest else f"{text[: longest - 3]}..."
    return f"'{escaped(cut)}'"


def escaped(text: str) -> str:
    """``shown`` without quotes, and whole."""
    return "".join(char if char in _PLAIN else _escape(ord(char)) for char in text)


def _escape(number: int) -> str:
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"


def reason(error: OSError) -> str:
    """The errno text in the form the reference prints: lower case, without number and path."""
    import os

    # What this program raised has words of its own, such as "not a regular file" with EINVAL.
    own = error.strerror if type(error) is OSError else ""
    return own.lower() if own else os.strerror(error.errno).lower() if error.errno else str(error).lower()
