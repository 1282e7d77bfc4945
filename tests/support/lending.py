"""Memory that a guarded process exports and another one imports: ``lend`` and ``borrow`` of tests/system/attacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.support import leftovers
from tests.support.guarded import GuardedTenant
from tests.support.spoken import Spoken

MIB = 1 << 20
NO_MEMORY = 0x51
#: Of the piece.
SIZE = 1024 * MIB

#: Starts the program with the attacks in a tenant.
Start = Callable[..., Spoken]


def _said(program: Spoken, name: str) -> int:
    found, value = program.line().split("=")
    assert found == name, (found, value)
    return int(value)


def lent(start: Start, place: Path, lender: GuardedTenant, borrower: GuardedTenant) -> tuple[Spoken, Spoken, int]:
    """Both programs, and the status of the import. place: an empty directory, with a short path."""
    words = str(SIZE // MIB)
    one = start(lender, "lend", str(place / "socket"), words)
    assert (_said(one, "memory"), _said(one, "export"), _said(one, "ready")) == (0, 0, 1)
    other = start(borrower, "borrow", str(place / "socket"), words)
    status = _said(other, "import")
    mapped = _said(other, "mapped")
    assert (mapped == 0) == (status == 0)
    return one, other, status


def between_tenants(start: Start, place: Path, lender: GuardedTenant, borrower: GuardedTenant) -> dict[str, int]:
    """M3 by a descriptor: what the borrower is charged after each step, in MiB. Its quota has room for one piece."""
    one, other, status = lent(start, place, lender, borrower)
    charged = {"status": status, "imported": borrower.used() // MIB}
    other.tell("")
    assert _said(other, "freed") == 0
    charged["freed"] = borrower.used() // MIB
    one.tell("")
    assert _said(one, "freed") == 0
    one.kill()
    assert leftovers.until(lambda: lender.status().processes == 0, seconds=30)
    charged["lender ended"] = borrower.used() // MIB
    other.kill()
    charged["end"] = 0 if borrower.empty() and lender.empty() else borrower.used() // MIB
    return charged


def within_tenant(start: Start, place: Path, tenant: GuardedTenant) -> dict[str, int]:
    """What a tenant is charged after each step, in MiB."""
    one, other, status = lent(start, place, tenant, tenant)
    charged = {"status": status, "imported": tenant.used() // MIB}
    one.tell("")
    assert _said(one, "freed") == 0
    charged["exporter freed"] = tenant.used() // MIB
    other.kill()
    one.kill()
    charged["end"] = 0 if tenant.empty() else tenant.used() // MIB
    return charged
