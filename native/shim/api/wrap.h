/*
 * The rows of rows.def (API_ROWS: of managed.def) as prototypes, function types and numbers. A row without a function
 * does not link, a function with another signature does not compile, a function without a row is not exported.
 */
#ifndef NVC_API_WRAP_H
#define NVC_API_WRAP_H

#include "abi.h"

#include <stdbool.h>

#define EXPORTED __attribute__ ((visibility ("default")))

/*
 * Two libraries are built from these files. libnvc-shim-managed.so is loaded into every program of a container with a
 * limit of memory, and so must not disturb other definitions of the same names: its exported functions are for programs
 * that are linked with the driver and call what those would have reached (next_in_scope), and lookups return other
 * functions.
 */
#ifdef API_MANAGED
#define API_ROWS "managed.def"
#define ANSWER(symbol) answer_##symbol
#define ANSWER_PROTOTYPE(result, symbol, parameters) __attribute__ ((visibility ("hidden"))) result answer_##symbol parameters;
#else
#define API_ROWS "rows.def"
#define ANSWER(symbol) symbol
#define ANSWER_PROTOTYPE(result, symbol, parameters)
#endif

enum library { LIBRARY_CUDA, LIBRARY_NVML, LIBRARIES };
/* also the flags of cuGetProcAddress */
enum default_stream { STREAM_BOTH = 0, STREAM_LEGACY = 1, STREAM_PER_THREAD = 2 };

enum row {
#define WRAP(result, symbol, parameters, base, version, stream, library) ROW_##symbol,
#include API_ROWS
    WRAPPED,
    ROW_LAST_WRAPPED = WRAPPED - 1,
#undef WRAP
#define WRAP(result, symbol, parameters, base, version, stream, library)
#define USE(result, symbol, parameters, library) ROW_##symbol,
#include API_ROWS
    ROWS
#undef WRAP
#undef USE
};

#define WRAP(result, symbol, parameters, base, version, stream, library)                                                           \
    EXPORTED result symbol parameters;                                                                                             \
    ANSWER_PROTOTYPE (result, symbol, parameters)                                                                                  \
    typedef result (*type_##symbol) parameters;
#define USE(result, symbol, parameters, library) typedef result (*type_##symbol) parameters;
#include API_ROWS
#undef WRAP
#undef USE

/* The driver's own function; where it has none, one that returns "not found" for any arguments. */
#define NEXT(symbol) ((type_##symbol) next_function (ROW_##symbol))

typedef void (*driver_function) (void);

struct row_facts {
    const char *symbol, *base;
    int version;
    enum default_stream stream;
    enum library library;
    void *exported, *answer; /* NULL: a USE row */
};
extern const struct row_facts row_facts[ROWS];

/* The wrapped function of that exact name; WRAPPED for dlsym, WRAPPED + 1 for dlvsym, -1 for anything else. */
#define NAME_DLSYM WRAPPED
#define NAME_DLVSYM (WRAPPED + 1)
int name_find (const char *name);

/* next.c */
driver_function next_function (enum row row);
bool next_exists (enum row row);
/* The driver's function if it is known without a search for the driver's library; NULL. */
void *next_known (enum row row);
/* Whether this address is the driver's own function of that row. Identifies the driver's library by it. */
bool next_is_real (enum row row, void *address);
/* The function that a program linked with that name reaches without this library; else as next_function. caller: an
 * address in the program. */
driver_function next_in_scope (enum row row, const void *caller);

/* proc_address.c: replaces the driver's function, its result for that name, by the wrapper. */
void proc_address_replace (const char *symbol, void **address);

#endif
