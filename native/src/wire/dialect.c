/* All dialects, by number and by the name that a listener has for them. */
#include "wire/dialect.h"

#include "wire/positions.h"

#include <string.h>

static const dialect *const all[] = {&dialect_classic, &dialect_iggy09, &dialect_values, &dialect_positions};

const dialect *dialect_of(uint8_t number) {
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i]->number == number) return all[i];
    return dialect_legacy(number);
}

const dialect *dialect_named(const char *name) {
    if (strcmp(name, dialect_undecided.name) == 0) return &dialect_undecided;
    if (strcmp(name, dialect_undecided_or_unnamed.name) == 0) return &dialect_undecided_or_unnamed;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i]->read_head != NULL && strcmp(all[i]->name, name) == 0) return all[i];
    return NULL;
}
