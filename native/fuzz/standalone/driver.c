/* A main for the fuzz targets where there is no libFuzzer (gcc): mutates inputs and keeps those that reach new edges.
 * The targets are compiled with sanitizers and -fsanitize-coverage=trace-pc, this file is not.
 *
 *   fuzz_x [-max_total_time=SECONDS] [-runs=N] [-max_len=BYTES] [-seed=N]
 *
 * A crash prints seed and input through the sanitizers' death callback. */
#include <sanitizer/asan_interface.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EDGES 8192u
#define INPUTS_MAX 4096u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void __sanitizer_cov_trace_pc(void);
const char *__asan_default_options(void);

const char *__asan_default_options(void) { return "handle_abort=1:detect_leaks=0"; }

static uint8_t hit[EDGES], known[EDGES];
static uintptr_t previous;
static uint8_t *inputs[INPUTS_MAX];
static size_t sizes[INPUTS_MAX], inputs_count;
static uint64_t state;
static uint8_t *current;
static size_t current_size;

void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    hit[(here ^ previous) % EDGES] = 1;
    previous = here >> 1;
}

static uint64_t draw(uint64_t below) { /* xorshift64 */
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return below == 0 ? 0 : state % below;
}

static void on_death(void) {
    fprintf(stderr, "input of %zu bytes: ", current_size);
    for (size_t i = 0; i < current_size; i++) fprintf(stderr, "%02x", current[i]);
    fprintf(stderr, "\n");
}

static void keep(void) {
    bool new_edges = false;
    for (size_t i = 0; i < EDGES; i++)
        if (hit[i] && !known[i]) {
            known[i] = 1;
            new_edges = true;
        }
    if (!new_edges) return;
    size_t place = inputs_count < INPUTS_MAX ? inputs_count++ : draw(INPUTS_MAX);
    free(inputs[place]);
    inputs[place] = malloc(current_size + 1);
    if (inputs[place] == NULL) abort();
    memcpy(inputs[place], current, current_size);
    sizes[place] = current_size;
}

static void mutate(size_t size_max) {
    static const uint32_t numbers[] = {0, 1, 2, 3, 4, 64, 255, 65535, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF};
    for (uint64_t changes = 1 + draw(5); changes > 0; changes--) {
        size_t at = draw(current_size + 1), room = current_size - at;
        switch (draw(6)) {
        case 0:
            if (room > 0) current[at] ^= (uint8_t)(1u << draw(8));
            break;
        case 1:
            if (room > 0) current[at] = (uint8_t)draw(256);
            break;
        case 2:
            if (room >= 4) memcpy(current + at, &numbers[draw(sizeof numbers / sizeof *numbers)], 4);
            break;
        case 3: current_size = at; break;
        case 4:
            for (uint64_t more = 1 + draw(64); more > 0 && current_size < size_max; more--)
                current[current_size++] = draw(2) ? 0 : (uint8_t)draw(256);
            break;
        default: { /* a part of another input */
            size_t other = draw(inputs_count), from = draw(sizes[other] + 1), part = draw(sizes[other] - from + 1);
            if (part > size_max - at) part = size_max - at;
            memcpy(current + at, inputs[other] + from, part);
            if (at + part > current_size) current_size = at + part;
        }
        }
    }
}

static uint64_t option(int count, char **values, const char *name, uint64_t otherwise) {
    for (int i = 1; i < count; i++)
        if (strncmp(values[i], name, strlen(name)) == 0) return strtoull(values[i] + strlen(name), NULL, 10);
    return otherwise;
}

int main(int count, char **values) {
    uint64_t runs_max = option(count, values, "-runs=", UINT64_MAX);
    uint64_t seconds = option(count, values, "-max_total_time=", runs_max == UINT64_MAX ? 60 : UINT32_MAX);
    uint64_t size_max = option(count, values, "-max_len=", 4096);
    uint64_t seed = option(count, values, "-seed=", (uint64_t)time(NULL));
    state = seed * 0x9E3779B97F4A7C15u | 1;
    __asan_set_death_callback(on_death);
    fprintf(stderr, "%s: seed %llu\n", values[0], (unsigned long long)seed);
    current = calloc(1, size_max + 1);
    inputs[0] = calloc(1, 64);
    if (current == NULL || inputs[0] == NULL) abort();
    sizes[0] = 64 < size_max ? 64 : size_max;
    inputs_count = 1;
    uint64_t runs = 0;
    time_t end = time(NULL) + (time_t)seconds;
    for (; runs < runs_max && ((runs & 255) != 0 || time(NULL) < end); runs++) {
        size_t from = draw(inputs_count);
        memcpy(current, inputs[from], sizes[from]);
        current_size = sizes[from];
        mutate(size_max);
        memset(hit, 0, sizeof hit);
        previous = 0;
        LLVMFuzzerTestOneInput(current, current_size);
        keep();
    }
    size_t edges = 0;
    for (size_t i = 0; i < EDGES; i++) edges += known[i];
    printf("%s: %llu runs, %zu edges, %zu inputs kept\n", values[0], (unsigned long long)runs, edges, inputs_count);
    return 0;
}
