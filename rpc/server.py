"""The helper's side: receive, look up, decode, call the handler, reply. One request at a time, in order."""

from __future__ import annotations

from rpc import channel, codec, stop
from rpc.errors import ChannelError, Stop
from rpc.stop import MAX_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from rpc.channel import Channel
    from rpc.method import Method, Service

    #: (request, descriptors) -> reply, or (reply, descriptors). Descriptors still in the list after the call are
    #: closed, so a handler that keeps one takes it out; descriptors it returns are sent and then closed.
    Handler = Callable[[Any, list[int]], Any]
    #: An exception of a handler as data that the caller can raise again.
    Translate = Callable[[BaseException], dict[str, Any]]


class BadRequest(ValueError):
    """A request that is not one of this service's; the handler was not called."""


def check_handlers(service: Service, handlers: Mapping[str, Handler]) -> None:
    """Raise ValueError unless there is exactly one handler for every verb."""
    wrong = sorted(set(service.methods) ^ set(handlers))
    if wrong:
        raise ValueError(f"service {service.name}: verbs and handlers differ in {', '.join(wrong)}")


def serve(
    service: Service,
    handlers: Mapping[str, Handler],
    end: Channel,
    *,
    translate: Translate | None = None,
    failure: Exception | None = None,
    idle: Callable[[], bool | None] | None = None,
) -> None:
    """Answer requests until the caller closes its end.

    idle: called after the first reply, to prepare for the next request while the caller does something else; and after
    the next one when it returns True. Its exceptions end the helper.

    failure: why the service cannot work; it is the answer to every request, so that the caller learns the reason of a
    failed set-up.
    Raises ChannelError or OSError when the channel itself fails: the caller has died or breaks the protocol.
    """
    while True:
        received = end.receive()
        if received is None:
            stop.limit_call(0.0)
            return
        message, fds = received
        returned: list[int] = []
        number = 0
        try:
            try:
                number, verb, data, seconds = _envelope(message)
                stop.limit_call(seconds)
                if failure is not None:
                    raise failure
                method = _method(service, verb, fds)
                request = method.request.from_data(data)
                reply = _reply(method, handlers[verb](request, fds), returned)
                answer = codec.dumps({"id": number, "reply": reply.as_data()})
                if len(answer) > channel.LIMIT:
                    raise ChannelError(f"the reply has {len(answer)} bytes, more than {channel.LIMIT}")
            except Stop:
                raise
            except BaseException as error:
                # Also SystemExit and KeyboardInterrupt: a handler does not decide when the process ends.
                channel.close_all(returned)
                answer = codec.dumps({"id": number, "error": _error(error, translate)})
            end.send(answer, returned)
        finally:
            channel.close_all(fds)
            channel.close_all(returned)
            stop.pause()
        if idle is not None and (failure is not None or not idle()):
            idle = None


def _envelope(message: bytes) -> tuple[int, str, Any, float]:
    data = codec.loads(message)
    if not isinstance(data, dict) or sorted(data) != ["id", "request", "seconds", "verb"]:
        raise BadRequest("a request has id, verb, seconds and request")
    number, verb, seconds = data["id"], data["verb"], data["seconds"]
    if type(number) is not int or not isinstance(verb, str):
        raise BadRequest("a request's id is a number and its verb a word")
    if type(seconds) not in (int, float) or not 0 <= seconds <= MAX_SECONDS:
        raise BadRequest("a request's seconds are not a number of its size")
    return number, verb, data["request"], seconds


def _method(service: Service, verb: str, fds: Sequence[int]) -> Method:
    method = service.methods.get(verb)
    if method is None:
        raise BadRequest(f"no verb {verb!r}")
    if len(fds) > method.request_fds:
        raise BadRequest(f"{verb} takes {method.request_fds} descriptors, got {len(fds)}")
    return method


def _reply(method: Method, result: Any, returned: list[int]) -> Any:
    if isinstance(result, tuple):
        result, fds = result
        returned.extend(fds)
    if not isinstance(result, method.reply):
        raise TypeError(f"the handler of {method.name} returned a {type(result).__name__}")
    if len(returned) > method.reply_fds:
        raise TypeError(f"the handler of {method.name} returned {len(returned)} descriptors")
    return result


def _error(error: BaseException, translate: Translate | None) -> dict[str, Any]:
    text = f"{type(error).__name__}: {error}"
    if translate is None:
        return {"text": text, "data": None}
    try:
        data = translate(error)
        codec.dumps(data)
    except Exception as second:
        return {"text": f"{text} (and its translation failed: {second})", "data": None}
    return {"text": text, "data": data}
