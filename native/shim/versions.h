/* Symbols of libc are imported in their oldest version, so that the library loads with every glibc from 2.17 on. */
#ifndef NVC_SHIM_VERSIONS_H
#define NVC_SHIM_VERSIONS_H

#if defined(__x86_64__)
#define OLDEST_VERSION(name) __asm__ (".symver " #name ", " #name "@GLIBC_2.2.5")
#elif defined(__aarch64__)
#define OLDEST_VERSION(name) __asm__ (".symver " #name ", " #name "@GLIBC_2.17")
#endif

#endif
