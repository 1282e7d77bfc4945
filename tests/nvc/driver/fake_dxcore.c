/* A libdxcore.so that answers as a test says: COUNT adapters, STORE as their driver store, VERSION of their WDDM.
   ENUM_FAILS, QUERY_FAILS: a status below zero. NO_END: the path fills all room and has no end. OLD: only the second
   version of the enumeration. ODD: a character that is none. */
#include <stdint.h>
#include <stddef.h>
#include <wchar.h>

#ifndef COUNT
#define COUNT 1
#endif
#ifndef VERSION
#define VERSION 3000
#endif
#ifndef STORE
#define STORE L"/store"
#endif

struct adapter {
    uint32_t handle, luid[2], sources, preferred;
};
struct enumeration {
#ifndef OLD
    uint64_t filter;
#endif
    uint32_t count;
    struct adapter *adapters;
};
struct query {
    uint32_t handle, type;
    void *data;
    uint32_t size;
};
struct registry {
    uint32_t type, flags;
    wchar_t name[260];
    uint32_t value_type, index, size, status;
    wchar_t text[];
};

#ifdef OLD
int32_t D3DKMTEnumAdapters2 (struct enumeration *arguments)
#else
int32_t D3DKMTEnumAdapters3 (struct enumeration *arguments)
#endif
{
#ifdef ENUM_FAILS
    return (int32_t) 0xC0000001;
#endif
    for (uint32_t i = 0; arguments->adapters != NULL && i < arguments->count && i < COUNT; i++)
        arguments->adapters[i].handle = i + 1;
    arguments->count = COUNT;
    return 0;
}

#ifndef NO_QUERY
int32_t D3DKMTQueryAdapterInfo (const struct query *arguments)
{
    struct registry *registry = arguments->data;
#ifdef QUERY_FAILS
    return (int32_t) 0xC000000D;
#endif
    if (arguments->type == 13) {
        *(uint32_t *) arguments->data = VERSION;
        return 0;
    }
#ifdef NO_END
    for (size_t i = 0; i < (arguments->size - offsetof (struct registry, text)) / sizeof (wchar_t); i++)
        registry->text[i] = L'x';
    registry->size = 0xFFFFFFFF;
#else
    wcscpy (registry->text, STORE);
    registry->size = (uint32_t) ((wcslen (STORE) + 1) * sizeof (wchar_t));
#endif
#ifdef ODD
    ((uint32_t *) registry->text)[0] = 0x7FFFFFFF;
#endif
#ifdef OVERFLOWS
    registry->status = 1;
#else
    registry->status = 0;
#endif
    return 0;
}
#endif
