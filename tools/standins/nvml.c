/* A stand-in for NVIDIA's management library: any rig, any failure, from a scenario file.
 *
 * The file is named by NVML_SCENARIO, else by the macro SCENARIO. Its lines:
 *   driver 580.95.05
 *   cuda 13000
 *   device UUID|00000000:01:00.0|220410de|NAME|MAJOR.MINOR|TOTAL_BYTES|FREE_BYTES
 *   process DEVICE PID BYTES        (a compute process; 18446744073709551615 is "not available")
 *   graphics DEVICE PID BYTES       (one that draws; a process may be both)
 *   nvlink DEVICE LINK STATE [PEER] (1: active; a card without such a line has no NVLink; PEER: the
 *                                    card at the far end, -1 a switch, none: it is not told)
 *   p2p DEVICE DEVICE STATUS        (peer access over PCIe, both ways; without: not supported)
 *   topology DEVICE DEVICE LEVEL    (without: 40, one node)
 *   instance DEVICE UUID|NAME|BYTES (a MIG instance)
 *   value FUNCTION DEVICE N [N...]  (what a call says; without, it is not supported here)
 *   error FUNCTION DEVICE CODE      (DEVICE -1: calls that name no device)
 *   hang FUNCTION                   (never comes back)
 *   crash FUNCTION                  (ends the process)
 * In names, \xHH is a byte: control characters, NUL, what is no UTF-8.
 * A DEVICE in `value` may be -1: every card; the last line for a call and card counts.
 * Build with -DDRIVER=470 for a driver that is too old to have what came later.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef SCENARIO
#define SCENARIO "/etc/nvml-scenario"
#endif
#ifndef DRIVER
#define DRIVER 580
#endif
#define MOST 64
#define MOST_VALUES 2048
#define MOST_NUMBERS 4
#define UNTOLD -2
#define SWITCH -1
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
struct link { int device; unsigned number, state; int peer; };
struct between { int one, other, code; };
struct instance { int device; struct device card; };
struct value { char function[64]; int device; unsigned long long numbers[MOST_NUMBERS]; };
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
static struct between accesses[MOST], levels[MOST];
static struct instance instances[MOST];
static struct value values[MOST_VALUES];
static struct failure failures[MOST];
static char hangs[MOST][64], crashes[MOST][64];
static int device_count, process_count, link_count, failure_count, hang_count, crash_count, loaded;
static int access_count, level_count, instance_count, value_count;
static char driver[64] = "";
static int cuda = 0;

/* Puts the byte of each \xHH into a text; a NUL ends what callers see of it. */
static void unescape(char *text) {
    char *out = text;
    unsigned byte;
    while (*text) {
        if (sscanf(text, "\\x%2x", &byte) == 1) {
            *out++ = (char)byte;
            text += 4;
        } else *out++ = *text++;
    }
    *out = 0;
}

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
        struct between *a = &accesses[access_count], *t = &levels[level_count];
        struct instance *i = &instances[instance_count];
        struct value *v = &values[value_count];
        struct failure *f = &failures[failure_count];
        if (device_count == MOST || process_count == MOST || link_count == MOST
            || access_count == MOST || level_count == MOST || instance_count == MOST
            || value_count == MOST_VALUES || failure_count == MOST || hang_count == MOST
            || crash_count == MOST)
            abort();
        l->peer = UNTOLD;
        if (sscanf(line, "driver %63s", driver) == 1) continue;
        if (sscanf(line, "cuda %d", &cuda) == 1) continue;
        if (sscanf(line, "hang %63s", hangs[hang_count]) == 1) hang_count++;
        else if (sscanf(line, "crash %63s", crashes[crash_count]) == 1) crash_count++;
        else if (sscanf(line, "device %95[^|]|%31[^|]|%x|%95[^|]|%u.%u|%llu|%llu", d->uuid, d->bus,
                        &d->pci, d->name, &d->major, &d->minor, &d->total, &d->free) == 8) {
            unescape(d->uuid);
            unescape(d->bus);
            unescape(d->name);
            device_count++;
        } else if (sscanf(line, "process %d %u %llu", &p->device, &p->pid, &p->bytes) == 3)
            process_count++;
        else if (sscanf(line, "graphics %d %u %llu", &p->device, &p->pid, &p->bytes) == 3) {
            p->draws = 1;
            process_count++;
        } else if (sscanf(line, "nvlink %d %u %u %d", &l->device, &l->number, &l->state,
                          &l->peer) >= 3)
            link_count++;
        else if (sscanf(line, "p2p %d %d %d", &a->one, &a->other, &a->code) == 3) access_count++;
        else if (sscanf(line, "topology %d %d %d", &t->one, &t->other, &t->code) == 3)
            level_count++;
        else if (sscanf(line, "instance %d %95[^|]|%95[^|]|%llu", &i->device, i->card.uuid,
                        i->card.name, &i->card.total) == 4)
            instance_count++;
        else if (sscanf(line, "value %63s %d %llu %llu %llu %llu", v->function, &v->device,
                        &v->numbers[0], &v->numbers[1], &v->numbers[2], &v->numbers[3]) >= 3)
            value_count++;
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
    for (int i = 0; i < crash_count; i++)
        if (!strcmp(crashes[i], function)) abort();
    for (int i = 0; i < failure_count; i++)
        if (!strcmp(failures[i].function, function) && failures[i].device == device)
            return failures[i].code;
    return 0;
}

/* Which card a handle is of; that of an instance is of none. */
static int number(void *handle) {
    struct device *d = handle;
    return d >= devices && d < devices + MOST ? (int)(d - devices) : MOST;
}

/* What the scenario lets a call say of a card. */
static struct value *said(const char *function, int device) {
    for (int i = value_count - 1; i >= 0; i--)
        if (!strcmp(values[i].function, function)
            && (values[i].device == device || (values[i].device == -1 && device < MOST)))
            return &values[i];
    return 0;
}

static int between(const struct between *list, int count, void *handle, void *peer, int without) {
    int one = number(handle), other = number(peer);
    for (int i = 0; i < count; i++)
        if ((list[i].one == one && list[i].other == other)
            || (list[i].one == other && list[i].other == one))
            return list[i].code;
    return without;
}

#define PLAIN() do { int e = told(__func__, -1); if (e) return e; } while (0)
#define OF(handle) do { int e = told(__func__, number(handle)); if (e) return e; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; PLAIN(); return 0; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlInit(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return 0; }

const char *nvmlErrorString(int code) {
    switch (code) {
    case 3: return "Not Supported";
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

#if DRIVER >= 510
int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *out) {
    struct device *d = handle;
    struct value *v;
    OF(handle);
    v = said(__func__, number(handle));
    out->total = d->total;
    out->reserved = v ? v->numbers[0] : 0;
    out->free = d->free;
    out->used = d->total - d->free - out->reserved;
    return 0;
}
#endif

/* Whether a card has an active link that leads to the other, or may lead there. */
static int leads(int one, int other) {
    for (int i = 0; i < link_count; i++)
        if (links[i].device == one && links[i].state
            && (links[i].peer == other || links[i].peer == SWITCH || links[i].peer == UNTOLD))
            return 1;
    return 0;
}

int nvmlDeviceGetP2PStatus(void *handle, void *peer, int index, int *status) {
    int one = number(handle), other = number(peer);
    OF(handle);
    if (index == P2P_NVLINK)
        *status = leads(one, other) && leads(other, one) ? 0 : P2P_NOT_SUPPORTED;
    else *status = between(accesses, access_count, handle, peer, P2P_NOT_SUPPORTED);
    return 0;
}

int nvmlDeviceGetTopologyCommonAncestor(void *handle, void *peer, int *level) {
    OF(handle);
    *level = between(levels, level_count, handle, peer, TOPOLOGY_NODE);
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

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, struct pci *out) {
    OF(handle);
    for (int i = 0; i < link_count; i++) {
        if (links[i].device != number(handle) || links[i].number != link) continue;
        if (links[i].peer == UNTOLD || links[i].peer >= device_count) return NOT_SUPPORTED;
        if (links[i].peer != SWITCH) return nvmlDeviceGetPciInfo_v3(&devices[links[i].peer], out);
        memset(out, 0, sizeof *out);
        snprintf(out->address, sizeof out->address, "00000000:C4:00.0");
        return 0;
    }
    return INVALID_ARGUMENT;
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

#if DRIVER >= 510
LISTED(nvmlDeviceGetComputeRunningProcesses_v3, 0)
LISTED(nvmlDeviceGetGraphicsRunningProcesses_v3, 1)
#endif
LISTED(nvmlDeviceGetComputeRunningProcesses_v2, 0)
LISTED(nvmlDeviceGetGraphicsRunningProcesses_v2, 1)

/* Calls that say up to four numbers, or nothing unless the scenario has them. */
#define NUMBERS(name, parameters, ...)                                       \
    int name parameters {                                                    \
        struct value *v;                                                     \
        OF(handle);                                                          \
        v = said(__func__, number(handle));                                  \
        if (!v) return NOT_SUPPORTED;                                        \
        __VA_ARGS__                                                          \
        return 0;                                                            \
    }
#define ONE(name) NUMBERS(name, (void *handle, unsigned *a), *a = (unsigned)v->numbers[0];)
#define LONG(name) NUMBERS(name, (void *handle, unsigned long long *a), *a = v->numbers[0];)
#define TWO(name)                                                            \
    NUMBERS(name, (void *handle, unsigned *a, unsigned *b),                  \
            *a = (unsigned)v->numbers[0]; *b = (unsigned)v->numbers[1];)

ONE(nvmlDeviceGetMinorNumber)
ONE(nvmlDeviceGetDisplayMode)
ONE(nvmlDeviceGetDisplayActive)
ONE(nvmlDeviceGetPersistenceMode)
ONE(nvmlDeviceGetPowerUsage)
ONE(nvmlDeviceGetPowerManagementLimit)
ONE(nvmlDeviceGetPowerManagementDefaultLimit)
ONE(nvmlDeviceGetCurrPcieLinkGeneration)
ONE(nvmlDeviceGetMaxPcieLinkGeneration)
ONE(nvmlDeviceGetCurrPcieLinkWidth)
ONE(nvmlDeviceGetMaxPcieLinkWidth)
ONE(nvmlDeviceGetVirtualizationMode)
ONE(nvmlDeviceGetRetiredPagesPendingStatus)
TWO(nvmlDeviceGetEccMode)
TWO(nvmlDeviceGetPowerManagementLimitConstraints)
LONG(nvmlDeviceGetCurrentClocksThrottleReasons)
NUMBERS(nvmlDeviceGetTemperature, (void *handle, unsigned sensor, unsigned *a),
        (void)sensor; *a = (unsigned)v->numbers[0];)
NUMBERS(nvmlDeviceGetTotalEccErrors,
        (void *handle, unsigned kind, unsigned since, unsigned long long *a),
        (void)kind; (void)since; *a = v->numbers[0];)

#if DRIVER >= 450
TWO(nvmlDeviceGetMigMode)
ONE(nvmlDeviceGetMaxMigDeviceCount)
NUMBERS(nvmlDeviceGetRemappedRows,
        (void *handle, unsigned *a, unsigned *b, unsigned *c, unsigned *d),
        *a = (unsigned)v->numbers[0]; *b = (unsigned)v->numbers[1];
        *c = (unsigned)v->numbers[2]; *d = (unsigned)v->numbers[3];)

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **out) {
    unsigned found = 0;
    OF(handle);
    for (int i = 0; i < instance_count; i++) {
        if (instances[i].device != number(handle) || found++ != index) continue;
        *out = &instances[i].card;
        return 0;
    }
    return NOT_FOUND;
}
#endif
