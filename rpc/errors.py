"""What can go wrong between a caller and its helper.

RpcError
+- ChannelError     a packet that cannot be sent, or is refused
+- RemoteError      a call that got no reply: service, verb, cause
Stop                (BaseException) the helper is being stopped: unwinds the running handler
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

#: The causes, as ONC RPC spells them and nvidia-container-cli prints them (libnvidia-container.md 1.10).
TIMED_OUT: Final = "timed out"
NOT_PROCESSED: Final = "failed to process request"


class RpcError(Exception):
    """Base of the errors that this package raises at run time."""


class ChannelError(RpcError):
    """A packet that could not be sent, or one that was received and refused."""


class RemoteError(RpcError):
    """A call failed. ``str`` is "<service> rpc error: <cause>: <verb>: <detail>".

    cause: TIMED_OUT or NOT_PROCESSED.
    detail: what happened, for people.
    data: what the service's ``translate`` made of the exception that the handler raised, or None when the failure is
        the mechanism's: the helper died, hung, or broke the protocol.
    """

    def __init__(self, service: str, verb: str, cause: str, detail: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(service, verb, cause, detail)
        self.service = service
        self.verb = verb
        self.cause = cause
        self.detail = detail
        self.data = data

    def __str__(self) -> str:
        return f"{self.service} rpc error: {self.cause}: {self.verb}: {self.detail}"


class Stop(BaseException):
    """Raised inside a running handler of a service that unwinds, so that it takes back what it has done.

    Not an ``Exception``: a handler's own error handling must not swallow it.
    """
