/* A stand-in for what llama.cpp asks CUDA's runtime of its cards, loaded before the real library,
 * which takes no driver but NVIDIA's own. Memory, kernels and all else are the real one's to refuse.
 *
 * There are as many cards as CARDS (a scenario of nvml.c) has `device` lines; all are one kind.
 */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#ifndef CARDS
#define CARDS "/etc/nvml-scenario"
#endif
#define MEMORY ((size_t)24 << 30)
#define FREE ((size_t)23 << 30)

static int current;

static int cards(void) {
    char line[512];
    int found = 0;
    FILE *file = fopen(CARDS, "r");
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) found += !strncmp(line, "device ", 7);
    fclose(file);
    return found;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = cards();
    return *count ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    if (device < 0 || device >= cards()) return cudaErrorInvalidDevice;
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "NVIDIA GeForce RTX 3090");
    properties->totalGlobalMem = MEMORY;
    properties->major = 8;
    properties->minor = 6;
    properties->multiProcessorCount = 82;
    properties->warpSize = 32;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = 99 << 10;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    (void)attribute, (void)device;
    *value = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
    snprintf(text, length, "0000:%02X:00.0", device + 1);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    (void)device, (void)peer;
    *can = 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    current = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = current;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    *available = FREE;
    *total = MEMORY;
    return cudaSuccess;
}
