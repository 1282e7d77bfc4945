/* The real functions: of the loader, and of the driver's libraries. Nothing here calls a function of libc that others
 * may stand before: sanitizers look names up when their own functions are not ready yet. */
#ifndef NVC_API_NEXT_H
#define NVC_API_NEXT_H

#include "wrap.h"

#include <link.h>

typedef void *(*dlsym_type) (void *handle, const char *name);
typedef void *(*dlvsym_type) (void *handle, const char *name, const char *version);

/* What a look-up without this library would have reached: the next dlsym after ours, NULL in a process without one. */
dlsym_type next_dlsym (void);
dlvsym_type next_dlvsym (void);
/* The C library's own function, wherever it lies (dlsym and its like moved from libdl to libc in glibc 2.34). */
void *next_libc (const char *name);
/* A library that is loaded already, by name, and an object's own scope: a handle for next_close, or NULL. */
void *next_open (const char *name);
void *next_open_object (const struct link_map *object);
void next_close (void *handle);
/* The loaded object that an address lies in; NULL. */
struct link_map *next_object (const void *address);

#endif
