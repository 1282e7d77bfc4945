"""What a container may use of a GPU: how it is written, how it is decided, and the files that hold it.

model, spec, dialects and policy are pure; preview decides whether a container gets a share; limits and region know the
two files of native/shim/share.h; store keeps the host's record of every container with a share.
"""
