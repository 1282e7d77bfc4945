"""Mechanism only: a helper process behind a socketpair, messages, descriptors. Knows nothing of GPUs.

    caller                                                   helper (forked, never exec'ed)
    ------                                                   ------------------------------
    start(service, handlers, prepare=...)  -- fork -->       signals reset, stdin and stdout to /dev/null,
                                                             other services' sockets closed, prepare()
    call("verb", request, fds, deadline)
        {"id":1,"verb":"verb","seconds":9.5,"request":{...}} + fds
                                                      ---->  request decoded strictly, handler called
                                                             (a prepare() that failed answers every call)
        {"id":1,"reply":{...}} + fds               <------   handler returned a value
        {"id":1,"error":{"text":...,"data":...}}   <------   handler raised; data is what translate() made of it
    close(): end of file                            ---->    leaves its loop, os._exit
             SIGTERM (services that unwind), SIGKILL         when it does not exit by itself

One message is one packet of a SOCK_SEQPACKET pair: either ``J`` and JSON text, or ``M``, the text's length, and a
sealed memfd with the text as first descriptor (above 64 KiB; at most 8 MiB). Descriptors travel as SCM_RIGHTS, at most
16, close-on-exec from the first instant; a cut packet is refused and what came with it is closed. Every wait of the
caller has a deadline. Whatever a helper does (dies, hangs, answers garbage, answers another question) ends as one
``RemoteError`` that names service, verb and cause, and the helper is ended.

Only modules that every interpreter start imports anyway are imported here (tests/rpc/test_imports.py).
"""
