/* Answers of the classic wire. */
#ifndef LOAD_REPLY_H
#define LOAD_REPLY_H
#include "dialect.h"

void reply_reset(reply *r);
size_t reply_take(reply *r, const asked *asked, const uint8_t *bytes, size_t length);
bool reply_complete(const reply *r, const asked *asked);
const char *reply_settle(reply *r, const asked *asked);
#endif
