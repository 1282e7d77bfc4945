/* Libraries that are loaded, read from the dynamic linker's own list: no call that somebody could have interposed. */
#ifndef NVC_API_ELF_H
#define NVC_API_ELF_H

#include <link.h>
#include <stdbool.h>

/* The first of the list (the program); NULL when there is no list. The list's objects from the start never go away. */
struct link_map *elf_first (void);
/* This library; NULL when the list does not have it. */
struct link_map *elf_self (void);
/* What an object itself defines under that name, in whatever version; NULL. */
void *elf_symbol (const struct link_map *object, const char *name);
/* DT_SONAME is exactly that. */
bool elf_is_named (const struct link_map *object, const char *name);

#endif
