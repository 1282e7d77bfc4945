/* A fuzz target takes any bytes; fuzz_main.c makes some by itself where there is no fuzzer. */
#ifndef NVC_TEST_FUZZ_H
#define NVC_TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput (const uint8_t *data, size_t size);

#endif
