// Adds two vectors on the GPU and checks every element; prints the device and "ok", or says what went wrong.
#include <stdio.h>

#define COUNT (1 << 20)

__global__ void add (const float *a, const float *b, float *sum)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < COUNT)
        sum[i] = a[i] + b[i];
}

static float a[COUNT], b[COUNT], sum[COUNT];

static int check (cudaError_t error, const char *call)
{
    if (error != cudaSuccess)
        fprintf (stderr, "%s: %s\n", call, cudaGetErrorString (error));
    return error != cudaSuccess;
}

int main (void)
{
    float *device_a, *device_b, *device_sum;
    cudaDeviceProp properties;
    const size_t size = sizeof a;

    for (int i = 0; i < COUNT; i++) {
        a[i] = (float) i;
        b[i] = 2.0f * (float) i;
    }
    if (check (cudaGetDeviceProperties (&properties, 0), "cudaGetDeviceProperties")
        || check (cudaMalloc ((void **) &device_a, size), "cudaMalloc")
        || check (cudaMalloc ((void **) &device_b, size), "cudaMalloc")
        || check (cudaMalloc ((void **) &device_sum, size), "cudaMalloc")
        || check (cudaMemcpy (device_a, a, size, cudaMemcpyHostToDevice), "cudaMemcpy")
        || check (cudaMemcpy (device_b, b, size, cudaMemcpyHostToDevice), "cudaMemcpy"))
        return 1;
    add<<<(COUNT + 255) / 256, 256>>> (device_a, device_b, device_sum);
    if (check (cudaGetLastError (), "launch")
        || check (cudaMemcpy (sum, device_sum, size, cudaMemcpyDeviceToHost), "cudaMemcpy"))
        return 1;
    for (int i = 0; i < COUNT; i++)
        if (sum[i] != 3.0f * (float) i) {
            fprintf (stderr, "element %d is %f\n", i, sum[i]);
            return 1;
        }
    printf ("%s ok\n", properties.name);
    return 0;
}
