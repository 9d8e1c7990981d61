// The builds of torch and torch_xla that this library was compiled for, for torch_xla/_castoff.py
// to compare with those that it finds. The build gives both as string literals.

#ifndef CASTOFF_TORCH_GIT_VERSION
#error "CASTOFF_TORCH_GIT_VERSION: torch.version.git_version of the torch that this is compiled for"
#endif
#ifndef CASTOFF_TORCH_XLA_GIT_VERSION
#error "CASTOFF_TORCH_XLA_GIT_VERSION: torch_xla.version.__xla_gitrev__ of the torch_xla likewise"
#endif

extern "C" {

__attribute__((visibility("default"))) const char* castoff_torch_xla_torch_git_version() {
  return CASTOFF_TORCH_GIT_VERSION;
}

__attribute__((visibility("default"))) const char* castoff_torch_xla_git_version() {
  return CASTOFF_TORCH_XLA_GIT_VERSION;
}

}  // extern "C"
