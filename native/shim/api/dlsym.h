/* Results of dlsym and dlvsym, for the stubs (stub.c). Implemented in dlsym.c. */
#ifndef NVC_API_DLSYM_H
#define NVC_API_DLSYM_H

/* Returned in two registers. answered: value is the result. Otherwise value is the function to jump to with the
 * caller's arguments and return address. */
struct answer {
    unsigned long answered;
    void *value;
};

struct answer api_dlsym (void *handle, const char *name, void *caller) __attribute__ ((visibility ("hidden")));
struct answer api_dlvsym (void *handle, const char *name, const char *version, void *caller)
    __attribute__ ((visibility ("hidden")));

#endif
