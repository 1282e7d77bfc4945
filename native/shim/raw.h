/*
 * System calls without libc: code inside a tenant's process must not allocate, take libc's locks, change errno or need
 * a symbol that an older libc lacks. Results are the kernel's: a value, or -errno. The functions are in raw.c;
 * native/syscall uses the inline part alone.
 */
#ifndef NVC_SHIM_RAW_H
#define NVC_SHIM_RAW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

#if defined(__x86_64__)
static inline long raw6 (long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__ ("r10") = d;
    register long r8 __asm__ ("r8") = e;
    register long r9 __asm__ ("r9") = f;

    __asm__ volatile ("syscall"
                      : "=a"(result)
                      : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                      : "rcx", "r11", "memory");
    return result;
}
#define RAW_PAUSE() __builtin_ia32_pause ()
#elif defined(__aarch64__)
static inline long raw6 (long number, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__ ("x8") = number;
    register long x0 __asm__ ("x0") = a;
    register long x1 __asm__ ("x1") = b;
    register long x2 __asm__ ("x2") = c;
    register long x3 __asm__ ("x3") = d;
    register long x4 __asm__ ("x4") = e;
    register long x5 __asm__ ("x5") = f;

    __asm__ volatile ("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory", "cc");
    return x0;
}
#define RAW_PAUSE() __asm__ volatile ("yield")
#else
#error "libnvc-shim.so is for x86-64 and aarch64, where NVIDIA's driver is"
#endif

#define RAW(number, a, b, c, d, e, f) raw6 (number, (long) (a), (long) (b), (long) (c), (long) (d), (long) (e), (long) (f))
#define RAW0(number) RAW (number, 0, 0, 0, 0, 0, 0)
#define RAW1(number, a) RAW (number, a, 0, 0, 0, 0, 0)
#define RAW2(number, a, b) RAW (number, a, b, 0, 0, 0, 0)
#define RAW3(number, a, b, c) RAW (number, a, b, c, 0, 0, 0)
#define RAW4(number, a, b, c, d) RAW (number, a, b, c, d, 0, 0)
#define RAW5(number, a, b, c, d, e) RAW (number, a, b, c, d, e, 0)

/* Whether the result is -errno (no address of mmap is in this range). */
static inline bool raw_failed (long result) { return (unsigned long) result > -4096UL; }

struct stat;
/* Whole small files of /proc. Bytes read, or -errno; always ends with a NUL within `size`. */
long raw_read_file (const char *path, char *text, size_t size);
/* Anonymous, private, zeroed memory in whole pages, or NULL. */
void *raw_pages (size_t size);
/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t raw_now (void);
/* nanosleep. */
void raw_sleep (uint64_t nanoseconds);

#define LOAD(place) __atomic_load_n (&(place), __ATOMIC_SEQ_CST)
#define LOAD_RELAXED(place) __atomic_load_n (&(place), __ATOMIC_RELAXED)
#define STORE(place, value) __atomic_store_n (&(place), value, __ATOMIC_SEQ_CST)

#endif
