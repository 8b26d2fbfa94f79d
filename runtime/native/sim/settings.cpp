#include "settings.hpp"

namespace calrt::sim {

const std::array<KeyInfo, key_count>& keys() {
    static const std::array<KeyInfo, key_count> table = {{
#define X(name, ...) {#name, __VA_ARGS__},
        CALRTSIM_KEYS(X)
#undef X
#define X(name, about) {#name, 1, 0, 1, about},
            CALEXEC_FACTS(X)
#undef X
    }};
    return table;
}

namespace {

std::size_t find(const std::string& key, std::string* why) {
    for (std::size_t i = 0; i < key_count; ++i) {
        if (key == keys()[i].name) return i;
    }
    *why = "no setting is called '" + key + "'; calrtsim_key() lists them";
    return key_count;
}

}  // namespace

Settings::Settings() {
    for (std::size_t i = 0; i < key_count; ++i) values_[i] = keys()[i].default_value;
}

bool Settings::set(const std::string& key, std::int64_t value, std::string* why) {
    const std::size_t i = find(key, why);
    if (i == key_count) return false;
    const KeyInfo& info = keys()[i];
    if (value < info.minimum || value > info.maximum) {
        *why = key + " = " + std::to_string(value) + " is not within " + std::to_string(info.minimum) + ".." +
               std::to_string(info.maximum);
        return false;
    }
    values_[i] = value;
    return true;
}

bool Settings::get(const std::string& key, std::int64_t* value, std::string* why) const {
    const std::size_t i = find(key, why);
    if (i == key_count) return false;
    *value = values_[i];
    return true;
}

}  // namespace calrt::sim
