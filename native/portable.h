/*
 * Included before everything else: what is built with a newer glibc also runs with Debian 12's (2.36). From 2.38 on, glibc's headers
 * give strtol, sscanf and their kin other names (__isoc23_strtol) wherever _GNU_SOURCE is defined. The macros are glibc's own
 * (features.h), by their names before and since 2.40.
 */
#ifndef NVC_PORTABLE_H
#define NVC_PORTABLE_H

#include <features.h>

#undef __GLIBC_USE_C2X_STRTOL
#define __GLIBC_USE_C2X_STRTOL 0
#undef __GLIBC_USE_C23_STRTOL
#define __GLIBC_USE_C23_STRTOL 0

#endif
