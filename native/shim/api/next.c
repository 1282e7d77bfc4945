/*
 * The real functions (next.h, wrap.h). Nothing is initialized at load: each value is looked up when it is first needed,
 * and twice does no harm, so atomic words suffice and there is no lock. A driver's library is identified by the first
 * address that a lookup finds in it, or (in programs linked with it) searched at the first call of a wrapper.
 *
 * Runs in every process that preloads one of the two libraries, on any thread.
 */
#include "next.h"

#include "shim/elf.h"

#include <dlfcn.h>
#include <stdatomic.h>

static const char *const LIBRARY_NAMES[LIBRARIES] = { "libcuda.so.1", "libnvidia-ml.so.1" };

static _Atomic (void *) real_dlsym, real_dlvsym, real_dladdr;
static _Atomic (void *) drivers[LIBRARIES]; /* struct link_map * */
static _Atomic (void *) functions[ROWS];
/* Return addresses of calls that go to the driver, by hash. */
#define SITES_BITS 6
static _Atomic (const void *) sites[1 << SITES_BITS];

/* From the first object after this library that defines it: another interposer, or libc. Objects loaded at the
 * program's start stay in the link map in this order, so no lock is needed to walk over them. */
static void *after_self (const char *name)
{
    struct link_map *object = elf_self ();
    return elf_find (object != NULL ? object->l_next : elf_first (), name, "");
}

static void *once (_Atomic (void *) *place, const char *name, void *(*find) (const char *name))
{
    void *found = atomic_load_explicit (place, memory_order_relaxed);
    if (found == NULL && (found = find (name)) != NULL)
        atomic_store_explicit (place, found, memory_order_relaxed);
    return found;
}

dlsym_type next_dlsym (void) { return (dlsym_type) once (&real_dlsym, "dlsym", after_self); }

dlvsym_type next_dlvsym (void) { return (dlvsym_type) once (&real_dlvsym, "dlvsym", after_self); }

void *next_libc (const char *name)
{
    for (struct link_map *object = elf_first (); object != NULL; object = object->l_next)
        if (elf_is_named (object, "libc.so.6") || elf_is_named (object, "libdl.so.2")) {
            void *found = elf_symbol (object, name);
            if (found != NULL)
                return found;
        }
    return NULL;
}

void *next_open (const char *name)
{
    void *(*open) (const char *, int) = (void *(*) (const char *, int) ) next_libc ("dlopen");
    return open != NULL ? open (name, RTLD_LAZY | RTLD_NOLOAD) : NULL;
}

void *next_open_object (const struct link_map *object)
{
    return object != NULL && object->l_name[0] != '\0' ? next_open (object->l_name) : NULL;
}

void next_close (void *handle)
{
    int (*close) (void *) = (int (*) (void *)) next_libc ("dlclose");
    if (close != NULL)
        close (handle);
}

struct link_map *next_object (const void *address)
{
    typedef int (*dladdr1_type) (const void *, Dl_info *, void **, int);
    dladdr1_type find = (dladdr1_type) once (&real_dladdr, "dladdr1", next_libc);
    Dl_info information;
    void *object = NULL;
    if (find == NULL || address == NULL || find (address, &information, &object, RTLD_DL_LINKMAP) == 0)
        return NULL;
    return object;
}

/* The driver's library in a program that is linked with it. Loads nothing. */
static struct link_map *locate_driver (enum library library, const char *symbol)
{
    dlsym_type find = next_dlsym ();
    struct link_map *object = find != NULL ? next_object (find (RTLD_NEXT, symbol)) : NULL;
    if (object == NULL || !elf_is_named (object, LIBRARY_NAMES[library])) {
        object = next_open (LIBRARY_NAMES[library]);
        if (object != NULL)
            next_close (object);
    }
    if (object != NULL) {
        void *none = NULL;
        if (!atomic_compare_exchange_strong (&drivers[library], &none, object))
            object = none;
    }
    return object;
}

void *next_known (enum row row)
{
    void *found = atomic_load_explicit (&functions[row], memory_order_relaxed);
    struct link_map *driver = atomic_load_explicit (&drivers[row_facts[row].library], memory_order_acquire);
    if (found == NULL && driver != NULL && (found = elf_symbol (driver, row_facts[row].symbol)) != NULL)
        atomic_store_explicit (&functions[row], found, memory_order_relaxed);
    return found;
}

static void *real_function (enum row row)
{
    void *found = next_known (row);
    if (found == NULL && atomic_load (&drivers[row_facts[row].library]) == NULL &&
        locate_driver (row_facts[row].library, row_facts[row].symbol) != NULL)
        found = next_known (row);
    return found;
}

bool next_exists (enum row row) { return real_function (row) != NULL; }

/* In both calling conventions the caller removes the arguments, so this serves for every function type. */
static int no_cuda_function (void) { return CUDA_ERROR_NOT_FOUND; }

static int no_nvml_function (void) { return NVML_ERROR_FUNCTION_NOT_FOUND; }

driver_function next_function (enum row row)
{
    driver_function found = (driver_function) real_function (row);
    if (found != NULL)
        return found;
    return (driver_function) (row_facts[row].library == LIBRARY_CUDA ? no_cuda_function : no_nvml_function);
}

/* Searches the rest of the global scope, then the scope of a library that was opened with RTLD_LOCAL: a tracer may
 * interpose there, or a stub that loads the driver at its first call. Only call sites that reach the driver are cached,
 * as other libraries may be unloaded. */
driver_function next_in_scope (enum row row, const void *caller)
{
    _Atomic (const void *) *site = &sites[(uintptr_t) caller * 0x9e3779b97f4a7c15u >> (64 - SITES_BITS)];
    void *found = NULL, *handle = NULL;
    dlsym_type find = next_dlsym ();
    if (atomic_load_explicit (site, memory_order_relaxed) == caller && next_known (row) != NULL)
        return next_function (row);
    if (find != NULL)
        found = find (RTLD_NEXT, row_facts[row].symbol);
    if (find != NULL && found == NULL && (handle = next_open_object (next_object (caller))) != NULL) {
        found = find (handle, row_facts[row].symbol);
        next_close (handle);
    }
    if (found == NULL)
        return next_function (row);
    if (next_is_real (row, found))
        atomic_store_explicit (site, caller, memory_order_relaxed);
    return (driver_function) found;
}

bool next_is_real (enum row row, void *address)
{
    void *known = next_known (row);
    if (known == address)
        return true;
    enum library library = row_facts[row].library;
    struct link_map *object = next_object (address);
    if (object == NULL || !elf_is_named (object, LIBRARY_NAMES[library]))
        return false;
    struct link_map *driver = atomic_load_explicit (&drivers[library], memory_order_acquire);
    if (driver != NULL && driver != object) {
        /* A second copy (dlmopen) keeps its own functions. A copy that was unloaded is replaced. */
        struct link_map *owner = known != NULL ? next_object (known) : NULL;
        if (owner == driver && elf_is_named (driver, LIBRARY_NAMES[library]))
            return false;
        for (enum row other = 0; other < ROWS; other++)
            if (row_facts[other].library == library)
                atomic_store_explicit (&functions[other], NULL, memory_order_relaxed);
    }
    atomic_store_explicit (&drivers[library], object, memory_order_release);
    return next_known (row) == address;
}
