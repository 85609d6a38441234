/* A stand-in for NVIDIA's management library: any rig, any failure, from a scenario file.
 *
 * The file is named by NVML_SCENARIO, else by the macro SCENARIO. Its lines:
 *   driver 580.95.05
 *   cuda 13000
 *   device UUID|00000000:01:00.0|220410de|NAME|MAJOR.MINOR|TOTAL_BYTES|FREE_BYTES
 *   process DEVICE PID BYTES        (a compute process; 18446744073709551615 is "not available")
 *   graphics DEVICE PID BYTES       (one that draws; a process may be both)
 *   nvlink DEVICE LINK STATE        (1: active; a card without such a line has no NVLink)
 *   error FUNCTION DEVICE CODE      (DEVICE -1: calls that name no device)
 *   hang FUNCTION
 * Build with -DWITHOUT_PROCESSES_V3 for a driver that is too old to have that symbol.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef SCENARIO
#define SCENARIO "/etc/nvml-scenario"
#endif
#define MOST 32
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define P2P_NVLINK 2
#define P2P_NOT_SUPPORTED 5
#define TOPOLOGY_NODE 40

struct device {
    char uuid[96], bus[32], name[96];
    unsigned pci, major, minor;
    unsigned long long total, free;
};
struct process { int device, draws; unsigned pid; unsigned long long bytes; };
struct link { int device; unsigned number, state; };
struct failure { char function[64]; int device, code; };
struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char address[32];
};
struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct running { unsigned pid; unsigned long long bytes; unsigned instance, compute; };

static struct device devices[MOST];
static struct process processes[MOST];
static struct link links[MOST];
static struct failure failures[MOST];
static char hangs[MOST][64];
static int device_count, process_count, link_count, failure_count, hang_count, loaded;
static char driver[64] = "";
static int cuda = 0;

static void load(void) {
    char line[512];
    const char *path = getenv("NVML_SCENARIO");
    FILE *file = fopen(path ? path : SCENARIO, "r");
    if (loaded || !file) return;
    loaded = 1;
    while (fgets(line, sizeof line, file)) {
        struct device *d = &devices[device_count];
        struct process *p = &processes[process_count];
        struct link *l = &links[link_count];
        struct failure *f = &failures[failure_count];
        if (sscanf(line, "driver %63s", driver) == 1) continue;
        if (sscanf(line, "cuda %d", &cuda) == 1) continue;
        if (sscanf(line, "hang %63s", hangs[hang_count]) == 1) hang_count++;
        else if (sscanf(line, "device %95[^|]|%31[^|]|%x|%95[^|]|%u.%u|%llu|%llu", d->uuid, d->bus,
                        &d->pci, d->name, &d->major, &d->minor, &d->total, &d->free) == 8)
            device_count++;
        else if (sscanf(line, "process %d %u %llu", &p->device, &p->pid, &p->bytes) == 3)
            process_count++;
        else if (sscanf(line, "graphics %d %u %llu", &p->device, &p->pid, &p->bytes) == 3) {
            p->draws = 1;
            process_count++;
        } else if (sscanf(line, "nvlink %d %u %u", &l->device, &l->number, &l->state) == 3)
            link_count++;
        else if (sscanf(line, "error %63s %d %d", f->function, &f->device, &f->code) == 3)
            failure_count++;
    }
    fclose(file);
}

/* 0, or the scenario's error for this call; a call that hangs never comes back. */
static int told(const char *function, int device) {
    load();
    for (int i = 0; i < hang_count; i++)
        while (!strcmp(hangs[i], function)) pause();
    for (int i = 0; i < failure_count; i++)
        if (!strcmp(failures[i].function, function) && failures[i].device == device)
            return failures[i].code;
    return 0;
}

static int number(void *handle) { return (int)((struct device *)handle - devices); }

#define PLAIN() do { int e = told(__func__, -1); if (e) return e; } while (0)
#define OF(handle) do { int e = told(__func__, number(handle)); if (e) return e; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; PLAIN(); return 0; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return 0; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case 4: return "Insufficient Permissions";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    PLAIN();
    snprintf(text, size, "%s", driver);
    return 0;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) { PLAIN(); *version = cuda; return 0; }
int nvmlSystemGetCudaDriverVersion(int *version) { PLAIN(); *version = cuda; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { PLAIN(); *count = device_count; return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if ((int)index >= device_count) return INVALID_ARGUMENT;
    *handle = &devices[index];
    OF(*handle);
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *text, void **handle) {
    PLAIN();
    for (int i = 0; i < device_count; i++)
        if (!strcmp(devices[i].uuid, text)) {
            *handle = &devices[i];
            return 0;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(void *handle, unsigned *index) {
    OF(handle);
    *index = number(handle);
    return 0;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    OF(handle);
    snprintf(text, size, "%s", ((struct device *)handle)->uuid);
    return 0;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    OF(handle);
    snprintf(text, size, "%s", ((struct device *)handle)->name);
    return 0;
}

int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *out) {
    struct device *d = handle;
    OF(handle);
    memset(out, 0, sizeof *out);
    sscanf(d->bus, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    out->id = d->pci;
    snprintf(out->address, sizeof out->address, "%s", d->bus);
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    OF(handle);
    *major = ((struct device *)handle)->major;
    *minor = ((struct device *)handle)->minor;
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *handle, struct memory *out) {
    struct device *d = handle;
    OF(handle);
    out->total = d->total;
    out->free = d->free;
    out->used = d->total - d->free;
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *out) {
    struct device *d = handle;
    OF(handle);
    out->total = d->total;
    out->reserved = 0;
    out->free = d->free;
    out->used = d->total - d->free;
    return 0;
}

/* Two cards reach each other over NVLink where both have an active link, never over PCIe. */
int nvmlDeviceGetP2PStatus(void *handle, void *peer, int index, int *status) {
    int linked[2] = {0, 0};
    OF(handle);
    for (int i = 0; i < link_count; i++) {
        linked[0] |= links[i].device == number(handle) && links[i].state;
        linked[1] |= links[i].device == number(peer) && links[i].state;
    }
    *status = index == P2P_NVLINK && linked[0] && linked[1] ? 0 : P2P_NOT_SUPPORTED;
    return 0;
}

int nvmlDeviceGetTopologyCommonAncestor(void *handle, void *peer, int *level) {
    (void)peer;
    OF(handle);
    *level = TOPOLOGY_NODE;
    return 0;
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *state) {
    int any = 0;
    OF(handle);
    for (int i = 0; i < link_count; i++) {
        if (links[i].device != number(handle)) continue;
        any = 1;
        if (links[i].number != link) continue;
        *state = links[i].state;
        return 0;
    }
    return any ? INVALID_ARGUMENT : NOT_SUPPORTED;
}

static int running(void *handle, int draws, unsigned *count, struct running *out) {
    unsigned found = 0, room = *count;
    for (int i = 0; i < process_count; i++) {
        if (processes[i].device != number(handle) || processes[i].draws != draws) continue;
        if (out && found < room) {
            memset(&out[found], 0, sizeof *out);
            out[found].pid = processes[i].pid;
            out[found].bytes = processes[i].bytes;
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : 0;
}

#define LISTED(name, draws)                                                  \
    int name(void *handle, unsigned *count, struct running *out) {           \
        OF(handle);                                                          \
        return running(handle, draws, count, out);                           \
    }

#ifndef WITHOUT_PROCESSES_V3
LISTED(nvmlDeviceGetComputeRunningProcesses_v3, 0)
LISTED(nvmlDeviceGetGraphicsRunningProcesses_v3, 1)
#endif
LISTED(nvmlDeviceGetComputeRunningProcesses_v2, 0)
LISTED(nvmlDeviceGetGraphicsRunningProcesses_v2, 1)
