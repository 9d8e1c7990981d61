// Writes through `unfold`: unfolding.cpp.

#pragma once

namespace castoff {

void mend_unfolding();

}  // namespace castoff
