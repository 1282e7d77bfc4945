/* The real functions of the loader and of the driver's libraries; next.c implements these and those of wrap.h. None of
 * them calls a function of libc that may be interposed: sanitizers look names up before their own functions are
 * ready. */
#ifndef NVC_API_NEXT_H
#define NVC_API_NEXT_H

#include "wrap.h"

#include <link.h>

typedef void *(*dlsym_type) (void *handle, const char *name);
typedef void *(*dlvsym_type) (void *handle, const char *name, const char *version);

/* What a call without this library reaches: the next dlsym after its own, NULL in a process without one. */
dlsym_type next_dlsym (void);
dlvsym_type next_dlvsym (void);
/* libc's own function (dlsym and others moved from libdl to libc in glibc 2.34). */
void *next_libc (const char *name);
/* A handle of a loaded library, by name, or of an object, for a lookup in its scope; NULL. Closed by next_close. */
void *next_open (const char *name);
void *next_open_object (const struct link_map *object);
void next_close (void *handle);
/* The loaded object that an address lies in; NULL. */
struct link_map *next_object (const void *address);

#endif
