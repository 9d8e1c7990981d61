#pragma once

namespace castoff {

void install_kernels_without_gradients();

}  // namespace castoff
