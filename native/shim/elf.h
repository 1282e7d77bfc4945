/* Libraries that are loaded, read from the dynamic linker's own list: no call that somebody could have interposed. */
#ifndef NVC_SHIM_ELF_H
#define NVC_SHIM_ELF_H

#include <link.h>
#include <stdbool.h>

/* The first of the list (the program); NULL when there is no list. The list's objects from the start never go away. */
struct link_map *elf_first (void);
/* This library, in whatever namespace (of dlmopen) it is; NULL when no list has it. */
struct link_map *elf_self (void);
/* The function that an object itself defines under that name, in its default version or else in any; NULL. Not one that
 * is chosen at load (STT_GNU_IFUNC). */
void *elf_symbol (const struct link_map *object, const char *name);
/* The same in the first object from this one on that has it, without a version or in one whose name begins like this: a
 * library's own version of a function is not what stands before libc's. The list is in the order of the loader's own
 * search, as far as the program's start goes:
 * after libraries that were preloaded come those that the program needs, and libc among them. */
void *elf_find (const struct link_map *object, const char *name, const char *version);
/* DT_SONAME is exactly that. */
bool elf_is_named (const struct link_map *object, const char *name);

#endif
