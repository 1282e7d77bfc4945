"""Tells once, when the agent starts, that quotas of memory do not hold for programs' ordinary memory, if that is so."""

from __future__ import annotations

from nvc.base.errors import NvcError
from nvc.bindings.uvm import OFF
from nvc.driver.pageable import ADVICE
from nvc.share import bounded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvc.agent.journal import Journal

#: Seconds until a driver that does not answer is left alone.
_SECONDS = 5.0
_FIX = "ask again with: nvc-py doctor --only driver"


def tell(ask: Callable[[], str], journal: Journal, seconds: float = _SECONDS) -> None:
    """ask: answers like ``nvc.driver.pageable.ask``; it is called in a child process, which may hang. Raises nothing.

    Says nothing where there is no nvidia-uvm (yet): the doctor does.
    """

    def work() -> str:
        try:
            return ask()
        except FileNotFoundError:
            return OFF
        except (OSError, NvcError) as error:
            return str(error)

    try:
        found = bounded.run(work, seconds) or "no answer"
    except OSError as error:
        found = str(error)
    advice = ADVICE.get(found)
    if advice is not None:
        journal.write("warning", message=advice.what, hint=advice.fix)
    elif found != OFF:
        what = f"whether programs' ordinary memory can lie in video memory is not known: {found}"
        journal.write("warning", message=what, hint=_FIX)
