/* All dialects by number. */
#include "wire/dialect.h"

const dialect *dialect_of(uint8_t number) {
    static const dialect *const all[] = {&dialect_classic, &dialect_values};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i]->number == number) return all[i];
    return NULL;
}
