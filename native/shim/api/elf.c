#include "elf.h"

#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>

/* Weak: it is the dynamic linker's, and naming that as a library that we need would stop us under another libc. */
extern struct r_debug _r_debug __attribute__ ((weak));
extern ElfW (Dyn) _DYNAMIC[] __attribute__ ((visibility ("hidden")));

struct tables {
    const ElfW (Sym) *symbols;
    const char *strings;
    const uint32_t *gnu;
    const uint32_t *hash;
    const char *name;
};

/* The dynamic linker has made most addresses in the dynamic section absolute, but not those of the vDSO. */
static const void *absolute (const struct link_map *object, ElfW (Addr) address)
{
    return (const void *) (address < object->l_addr ? address + object->l_addr : address);
}

static bool read_tables (const struct link_map *object, struct tables *tables)
{
    memset (tables, 0, sizeof (*tables));
    if (object->l_ld == NULL)
        return false;
    ElfW (Addr) name = 0;
    for (const ElfW (Dyn) *entry = object->l_ld; entry->d_tag != DT_NULL; entry++)
        switch (entry->d_tag) {
        case DT_SYMTAB:
            tables->symbols = absolute (object, entry->d_un.d_ptr);
            break;
        case DT_STRTAB:
            tables->strings = absolute (object, entry->d_un.d_ptr);
            break;
        case DT_GNU_HASH:
            tables->gnu = absolute (object, entry->d_un.d_ptr);
            break;
        case DT_HASH:
            tables->hash = absolute (object, entry->d_un.d_ptr);
            break;
        case DT_SONAME:
            name = entry->d_un.d_val;
            break;
        default:
            break;
        }
    if (tables->strings != NULL && name != 0)
        tables->name = tables->strings + name;
    return tables->symbols != NULL && tables->strings != NULL;
}

static struct link_map *program_list (void)
{
    /* The program's own pointer to the list, for a libc that does not export _r_debug. */
    const ElfW (Phdr) *headers = (const ElfW (Phdr) *) getauxval (AT_PHDR);
    unsigned long number = getauxval (AT_PHNUM);
    ElfW (Addr) base = 0;
    const ElfW (Dyn) *dynamic = NULL;
    for (unsigned long i = 0; headers != NULL && i < number; i++)
        if (headers[i].p_type == PT_PHDR)
            base = (ElfW (Addr)) headers - headers[i].p_vaddr;
    for (unsigned long i = 0; headers != NULL && i < number; i++)
        if (headers[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW (Dyn) *) (base + headers[i].p_vaddr);
    for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == DT_DEBUG && dynamic->d_un.d_ptr != 0)
            return ((const struct r_debug *) dynamic->d_un.d_ptr)->r_map;
    return NULL;
}

struct link_map *elf_first (void)
{
    if (&_r_debug != NULL && _r_debug.r_map != NULL)
        return _r_debug.r_map;
    return program_list ();
}

struct link_map *elf_self (void)
{
    for (struct link_map *object = elf_first (); object != NULL; object = object->l_next)
        if (object->l_ld == _DYNAMIC)
            return object;
    return NULL;
}

static void *value_of (const struct link_map *object, const struct tables *tables, uint32_t index, const char *name)
{
    const ElfW (Sym) *symbol = &tables->symbols[index];
    if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_TYPE (symbol->st_info) != STT_FUNC)
        return NULL;
    return strcmp (tables->strings + symbol->st_name, name) == 0 ? (void *) (object->l_addr + symbol->st_value) : NULL;
}

static void *gnu_find (const struct link_map *object, const struct tables *tables, const char *name)
{
    uint32_t value = 5381;
    for (const char *next = name; *next != '\0'; next++)
        value = value * 33 + (uint8_t) *next;
    uint32_t buckets = tables->gnu[0], first = tables->gnu[1], bloom = tables->gnu[2];
    const uint32_t *bucket = &tables->gnu[4 + bloom * (sizeof (ElfW (Addr)) / sizeof (uint32_t))];
    const uint32_t *chain = bucket + buckets;
    uint32_t index = buckets != 0 ? bucket[value % buckets] : 0;
    if (index < first)
        return NULL;
    for (;; index++) {
        void *found = ((chain[index - first] ^ value) >> 1) == 0 ? value_of (object, tables, index, name) : NULL;
        if (found != NULL || (chain[index - first] & 1) != 0)
            return found;
    }
}

static void *hash_find (const struct link_map *object, const struct tables *tables, const char *name)
{
    uint32_t value = 0;
    for (const char *next = name; *next != '\0'; next++) {
        value = (value << 4) + (uint8_t) *next;
        uint32_t high = value & 0xf0000000;
        value = (value ^ (high >> 24)) & ~high;
    }
    uint32_t buckets = tables->hash[0], index = buckets != 0 ? tables->hash[2 + value % buckets] : 0;
    const uint32_t *chain = &tables->hash[2 + buckets];
    void *found = NULL;
    for (; index != 0 && found == NULL; index = chain[index])
        found = value_of (object, tables, index, name);
    return found;
}

void *elf_symbol (const struct link_map *object, const char *name)
{
    struct tables tables;
    if (!read_tables (object, &tables))
        return NULL;
    if (tables.gnu != NULL)
        return gnu_find (object, &tables, name);
    return tables.hash != NULL ? hash_find (object, &tables, name) : NULL;
}

bool elf_is_named (const struct link_map *object, const char *name)
{
    struct tables tables;
    read_tables (object, &tables);
    return tables.name != NULL && strcmp (tables.name, name) == 0;
}
