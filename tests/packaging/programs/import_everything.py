"""Imports every module of the installed nvc; prints their number, and whether two of them are there."""

import importlib
import pkgutil

import nvc

names = [module.name for module in pkgutil.walk_packages(nvc.__path__, "nvc.", onerror=print)]
names = [name for name in names if "-" not in name]  # libraries of C programs, which are no modules
for name in names:
    importlib.import_module(name)
print(len(names), "nvc._hook.inject" in names, "nvc.linux._raw" in names)
