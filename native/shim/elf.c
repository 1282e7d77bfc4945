/*
 * Symbol lookup in loaded objects (elf.h). Runs in every process of a container, on any thread, without a lock: at the
 * first call of an interposed function, and (libnvc-shim-api.so) at lookups by name.
 */
#include "elf.h"

#include <stdint.h>
#include <string.h>

#include "raw.h"

/* Weak: the dynamic linker defines it, and a DT_NEEDED entry for glibc's would keep the library from loading under
 * another libc. */
extern struct r_debug _r_debug __attribute__ ((weak));
extern ElfW (Dyn) _DYNAMIC[] __attribute__ ((visibility ("hidden")));

/* Fields of a DT_VERSYM entry: version number, or VERSION_NONE for an unversioned symbol; hidden: not the default
 * version. */
#define VERSION_NUMBER 0x7fffu
#define VERSION_HIDDEN 0x8000u
#define VERSION_NONE 1u

struct tables {
    const ElfW (Sym) * symbols;
    const char *strings;
    const uint32_t *gnu;
    const uint32_t *hash;
    const uint16_t *versions;
    const ElfW (Verdef) * defined;
    const char *name;
};

/* glibc's r_debug_extended, from r_version 2 on (glibc 2.35, once there is a second namespace). */
struct namespace
{
    struct r_debug debug;
    struct namespace *next;
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
        case DT_VERSYM:
            tables->versions = absolute (object, entry->d_un.d_ptr);
            break;
        case DT_VERDEF:
            tables->defined = absolute (object, entry->d_un.d_ptr);
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

/* DT_DEBUG of the program, for a libc that does not export _r_debug. /proc/self/auxv in place of getauxval, whose
 * symbol version is newer than those that libnvc-shim.so may import. */
static const struct r_debug *program_debug (void)
{
    ElfW (auxv_t) entries[64] = { 0 };
    const ElfW (Phdr) *headers = NULL;
    const ElfW (Dyn) *dynamic = NULL;
    ElfW (Addr) base = 0;
    unsigned long number = 0;
    raw_read_file ("/proc/self/auxv", (char *) entries, sizeof (entries) - sizeof (*entries));
    for (const ElfW (auxv_t) *entry = entries; entry->a_type != AT_NULL; entry++)
        if (entry->a_type == AT_PHDR)
            headers = (const ElfW (Phdr) *) entry->a_un.a_val;
        else if (entry->a_type == AT_PHNUM)
            number = entry->a_un.a_val;
    for (unsigned long i = 0; headers != NULL && i < number; i++)
        if (headers[i].p_type == PT_PHDR)
            base = (ElfW (Addr)) headers - headers[i].p_vaddr;
    for (unsigned long i = 0; headers != NULL && i < number; i++)
        if (headers[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW (Dyn) *) (base + headers[i].p_vaddr);
    for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++)
        if (dynamic->d_tag == DT_DEBUG && dynamic->d_un.d_ptr != 0)
            return (const struct r_debug *) dynamic->d_un.d_ptr;
    return NULL;
}

static const struct r_debug *debug (void) { return &_r_debug != NULL && _r_debug.r_map != NULL ? &_r_debug : program_debug (); }

struct link_map *elf_first (void)
{
    const struct r_debug *list = debug ();
    return list != NULL ? list->r_map : NULL;
}

struct link_map *elf_self (void)
{
    const struct namespace *space = (const struct namespace *) debug ();
    for (; space != NULL; space = space->debug.r_version > 1 ? space->next : NULL)
        for (struct link_map *object = space->debug.r_map; object != NULL; object = object->l_next)
            if (object->l_ld == _DYNAMIC)
                return object;
    return NULL;
}

/* Whether the name of that version begins with this text. True for no version: an interposer's functions have none. */
static bool is_version (const struct tables *tables, uint32_t number, const char *text)
{
    const ElfW (Verdef) *version = number > VERSION_NONE ? tables->defined : NULL;
    const ElfW (Verdaux) * name;
    while (version != NULL && version->vd_ndx != number)
        version = version->vd_next != 0 ? (const void *) ((const char *) version + version->vd_next) : NULL;
    if (version == NULL)
        return true;
    name = (const void *) ((const char *) version + version->vd_aux);
    return strncmp (tables->strings + name->vda_name, text, strlen (text)) == 0;
}

/* A lookup in an object's tables: what is sought, and the matches in any version and in the default one. */
struct match {
    const char *name, *version;
    void *any, *by_default;
};

static void match_symbol (const struct link_map *object, const struct tables *tables, uint32_t index, struct match *match)
{
    const ElfW (Sym) *symbol = &tables->symbols[index];
    unsigned type = ELF64_ST_TYPE (symbol->st_info);
    uint32_t version = tables->versions != NULL ? tables->versions[index] : VERSION_NONE;
    void *value = (void *) (object->l_addr + symbol->st_value);
    if (symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0 || (type != STT_FUNC && type != STT_NOTYPE) ||
        ELF64_ST_BIND (symbol->st_info) == STB_LOCAL || strcmp (tables->strings + symbol->st_name, match->name) != 0 ||
        !is_version (tables, version & VERSION_NUMBER, match->version))
        return;
    if (match->any == NULL)
        match->any = value;
    if (match->by_default == NULL && (version & VERSION_HIDDEN) == 0)
        match->by_default = value;
}

static void gnu_find (const struct link_map *object, const struct tables *tables, struct match *match)
{
    enum { BITS = 8 * sizeof (ElfW (Addr)) };
    uint32_t value = 5381;
    for (const char *next = match->name; *next != '\0'; next++)
        value = value * 33 + (uint8_t) *next;
    uint32_t buckets = tables->gnu[0], first = tables->gnu[1], words = tables->gnu[2], shift = tables->gnu[3];
    const ElfW (Addr) *bloom = (const ElfW (Addr) *) (const void *) &tables->gnu[4];
    const uint32_t *bucket = (const uint32_t *) (const void *) &bloom[words], *chain = bucket + buckets;
    ElfW (Addr) word = words != 0 ? bloom[value / BITS % words] : ~(ElfW (Addr)) 0;
    /* The Bloom filter rejects most objects here. */
    if (((word >> (value % BITS)) & (word >> ((value >> shift) % BITS)) & 1) == 0)
        return;
    uint32_t index = buckets != 0 ? bucket[value % buckets] : 0;
    if (index < first)
        return;
    for (;; index++) {
        if (((chain[index - first] ^ value) >> 1) == 0)
            match_symbol (object, tables, index, match);
        if (match->by_default != NULL || (chain[index - first] & 1) != 0)
            return;
    }
}

static void hash_find (const struct link_map *object, const struct tables *tables, struct match *match)
{
    uint32_t value = 0;
    for (const char *next = match->name; *next != '\0'; next++) {
        value = (value << 4) + (uint8_t) *next;
        uint32_t high = value & 0xf0000000;
        value = (value ^ (high >> 24)) & ~high;
    }
    uint32_t buckets = tables->hash[0], index = buckets != 0 ? tables->hash[2 + value % buckets] : 0;
    const uint32_t *chain = &tables->hash[2 + buckets];
    for (; index != 0 && match->by_default == NULL; index = chain[index])
        match_symbol (object, tables, index, match);
}

static void *find_in (const struct link_map *object, const char *name, const char *version)
{
    struct tables tables;
    struct match match = { name, version, NULL, NULL };
    if (!read_tables (object, &tables))
        return NULL;
    if (tables.gnu != NULL)
        gnu_find (object, &tables, &match);
    else if (tables.hash != NULL)
        hash_find (object, &tables, &match);
    return match.by_default != NULL ? match.by_default : match.any;
}

void *elf_symbol (const struct link_map *object, const char *name) { return find_in (object, name, ""); }

void *elf_find (const struct link_map *object, const char *name, const char *version)
{
    void *found = NULL;
    for (; object != NULL && found == NULL; object = object->l_next)
        found = find_in (object, name, version);
    return found;
}

bool elf_is_named (const struct link_map *object, const char *name)
{
    struct tables tables;
    read_tables (object, &tables);
    return tables.name != NULL && strcmp (tables.name, name) == 0;
}
