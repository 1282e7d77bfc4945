"""ctypes bindings of libraries and driver interfaces: libnvc-guard.so, the resource manager, nvidia-uvm,
libdxcore.so."""
