/* What rm and the shim use of <string.h>, with the library's own, hidden definitions (plain.c). */
#ifndef NVC_SHIM_PLAIN_H
#define NVC_SHIM_PLAIN_H

#include <string.h>

#endif
