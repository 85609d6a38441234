/* A stand-in for the CUDA driver library: engines import and read a card's properties, nothing runs.
 *
 * `rest.inc`, generated from the toolkit's cuda.h, names every other function: each answers
 * "no device". STANDIN_CAPABILITY is the card's compute capability, else the macro CAPABILITY is.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO_DEVICE 100
#define MULTIPROCESSORS 16
#define WARP_SIZE 10
#define MAJOR 75
#define MINOR 76
#ifndef DRIVER_VERSION
#define DRIVER_VERSION 13000
#endif
#ifndef CAPABILITY
#define CAPABILITY ""
#endif

static int part(int second) {
    const char *named = getenv("STANDIN_CAPABILITY"), *text = named ? named : CAPABILITY;
    const char *dot = strchr(text, '.');
    if (!dot) return 0;
    return atoi(second ? dot + 1 : text);
}

int cuInit(unsigned flags) { (void)flags; return 0; }
int cuDriverGetVersion(int *version) { *version = DRIVER_VERSION; return 0; }
int cuGetErrorString(int code, const char **text) { (void)code; *text = "stand-in"; return 0; }
int cuGetErrorName(int code, const char **text) { (void)code; *text = "STAND_IN"; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)1; return 0; }
int cuCtxSetCurrent(void *context) { (void)context; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    *context = (void *)1;
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)device;
    switch (attribute) {
    case MAJOR: *value = part(0); break;
    case MINOR: *value = part(1); break;
    case MULTIPROCESSORS: *value = 64; break;
    case WARP_SIZE: *value = 32; break;
    default: *value = 0;
    }
    return 0;
}

#define REST(name) int name(void) { return NO_DEVICE; }
#include "rest.inc"
