/* The loaded libraries, read from the dynamic linker's link map: no call of a function that could be interposed.
 * elf.c. */
#ifndef NVC_SHIM_ELF_H
#define NVC_SHIM_ELF_H

#include <link.h>
#include <stdbool.h>

/* The first object (the program); NULL without a link map. Objects loaded at the program's start are never unloaded. */
struct link_map *elf_first (void);
/* This library, in whatever dlmopen namespace it is; NULL when no link map has it. */
struct link_map *elf_self (void);
/* The function that the object defines under that name, in its default version or else in any; NULL: none.
 * STT_GNU_IFUNC symbols are skipped. */
void *elf_symbol (const struct link_map *object, const char *name);
/* The same in the first object from `object` on that defines it unversioned, or in a version whose name begins with
 * `version`: a library's private version of a function does not interpose libc's. For objects loaded at the program's
 * start the link map has the order of the loader's search: preloaded libraries, then those that the program needs, libc
 * among them. */
void *elf_find (const struct link_map *object, const char *name, const char *version);
/* Whether DT_SONAME is exactly `name`. */
bool elf_is_named (const struct link_map *object, const char *name);

#endif
