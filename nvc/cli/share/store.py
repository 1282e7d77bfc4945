"""The directory of shares without --store, and containers by what people call them."""

from __future__ import annotations

import os

import click

from nvc.base.errors import InputError, PrivilegeError
from nvc.share import place, store

#: Key of click's context: the store's directory.
DIRECTORY = "nvc.share.store"


def usual() -> str:
    """Root's, or the one that an ordinary user's rootless engine has (``nvc.share.place``)."""
    user = os.geteuid()
    return f"/run/user/{user}/nvc/share" if user else place.directory()


def chosen() -> str:
    """The directory of this call of `share`."""
    directory: str = click.get_current_context().meta[DIRECTORY]
    return directory


def nothing() -> str:
    """Why the store of this call has no share."""
    if os.geteuid() and chosen() == usual():
        return "no container of this user has a share; those of root's engines: sudo nvc-py share ls"
    return "no container here has a share; one asks with -e NVC_SHARE=mem=10Gi"


def known(word: str) -> str:
    """The id of the living container that ``word`` names; the word itself where the store knows none: a group's name,
    a container that has ended, or a store that the user may not read. Raises AmbiguousContainer.
    """
    context = click.get_current_context()
    try:
        with store.find(word, context.meta.get(DIRECTORY) or usual()) as entry:
            return entry.name
    except store.AmbiguousContainer:
        raise
    except (InputError, PrivilegeError):
        return word
