"""Every check, in the order of the report. docs/reference/doctor-checks.md has the same rows, held by a test."""

from __future__ import annotations

from nvc.doctor.finding import Check
from nvc.doctor.rows_machine import MACHINE
from nvc.doctor.rows_software import SOFTWARE

#: Area -> what it is about.
AREAS = {
    "driver": "the kernel module, NVML and related services",
    "libraries": "the loader cache and the driver's libraries",
    "nodes": "device nodes",
    "mig": "MIG devices and IMEX channels",
    "kernel": "the running kernel",
    "cgroup": "control groups",
    "engines": "container engines and their configuration",
    "hooks": "OCI hooks in hooks.d",
    "cdi": "CDI specs",
    "host": "security modules, settings, and the inventory",
    "share": "what enforces shares: libraries, agent and guards",
}

CHECKS: tuple[Check, ...] = (*MACHINE, *SOFTWARE)
ENGINES = tuple(check.engine for check in CHECKS if check.engine)


def choose(areas: tuple[str, ...] = (), engines: tuple[str, ...] = ()) -> tuple[Check, ...]:
    """The checks of these areas (none: all); of checks about an engine, those about these (none: all)."""
    return tuple(
        check
        for check in CHECKS
        if (not areas or check.area in areas) and (not engines or not check.engine or check.engine in engines)
    )
