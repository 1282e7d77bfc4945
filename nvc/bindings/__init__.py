"""ctypes bindings of libraries and driver interfaces: the resource manager, nvidia-uvm, libdxcore.so."""
