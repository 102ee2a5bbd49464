#include "wire/frame_limits.h"

#include "wire/classic_request.h"

uint32_t frame_limit(uint32_t code) {
    switch (code) {
    case CODE_PING: return FRAME_CONTROL_MAX; /* nothing of it is kept */
    case CODE_SEND_MESSAGES: return FRAME_SEND_MAX;
    case CODE_SEND_ONCE_DIGEST:
    case CODE_SEND_ONCE: return FRAME_SEND_ONCE_MAX;
    case CODE_CREATE_USER:
    case CODE_UPDATE_PERMISSIONS: return FRAME_PERMISSIONS_MAX;
    case CODE_GET_PARTITION_BOUNDS: return FRAME_BOUNDS_MAX;
    case CODE_SET_TOPIC_SETTINGS: return FRAME_SETTINGS_MAX;
    default: return FRAME_SMALL_MAX;
    }
}
