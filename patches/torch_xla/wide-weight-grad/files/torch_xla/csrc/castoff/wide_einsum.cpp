// einsum. torch_xla lowers one of two operands to a node of its own; so is its wide gradient.
#include <torch_xla/csrc/castoff/wide_weight_grad.h>

#include <ATen/ops/einsum_ops.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <vector>

namespace torch_xla::wide_weight_grad {
namespace {

bool has(const std::string& labels, char label) {
  return labels.find(label) != std::string::npos;
}

bool are_distinct(std::string labels) {
  std::sort(labels.begin(), labels.end());
  return std::adjacent_find(labels.begin(), labels.end()) == labels.end();
}

// Where the labels `some` stand in `labels`.
std::vector<int64_t> positions(const std::string& some, const std::string& labels) {
  std::vector<int64_t> found;
  for (const char label : some) found.push_back(static_cast<int64_t>(labels.find(label)));
  return found;
}

template <class Predicate>
std::string select(const std::string& labels, const Predicate& predicate) {
  std::string selected;
  std::copy_if(labels.begin(), labels.end(), std::back_inserter(selected), predicate);
  return selected;
}

// The labels of two operands and of their product, each with one letter for each dimension.
struct Pair {
  std::array<std::string, 2> operands;
  std::string result;

  // That of the gradient of operand `which`, and of the other operand, to it.
  std::string equation_of_gradient(size_t which) const {
    return result + "," + operands[1 - which] + "->" + operands[which];
  }
};

constexpr const char* kEllipsis = "...";

// Puts letters in the place of the ellipsis of `labels`, for `rank` dimensions in all: the last of
// `letters`. False if that cannot be.
bool spell_out(std::string& labels, int64_t rank, const std::string& letters) {
  const auto at = labels.find(kEllipsis);
  if (at == std::string::npos) return static_cast<int64_t>(labels.size()) == rank;
  const int64_t count = rank - static_cast<int64_t>(labels.size() - 3);
  if (count < 0 || count > static_cast<int64_t>(letters.size())) return false;
  labels.replace(at, 3, letters.substr(letters.size() - count));
  return true;
}

// The labels that `result` has where the equation does not say: an ellipsis first, then what is
// there once, in the order of the alphabet.
std::string implied_result(const std::string& both) {
  std::string once = select(both, [&](char label) {
    return std::isalpha(static_cast<unsigned char>(label)) &&
           std::count(both.begin(), both.end(), label) == 1;
  });
  std::sort(once.begin(), once.end());
  return (both.find(kEllipsis) == std::string::npos ? "" : kEllipsis) + once;
}

// How many dimensions the longest ellipsis stands for.
int64_t ellipsis_rank(const std::string& labels, int64_t rank) {
  return labels.find(kEllipsis) == std::string::npos
             ? 0
             : rank - static_cast<int64_t>(labels.size() - 3);
}

// Whether every label names two of the three tensors, none twice in one, and one extent.
bool is_plain(const Pair& pair, const Tensor& lhs, const Tensor& rhs) {
  const auto& [l, r] = pair.operands;
  const std::string all = l + r + pair.result;
  for (const char label : all) {
    if (has(l, label) + has(r, label) + has(pair.result, label) < 2) return false;
    if (has(l, label) && has(r, label) &&
        lhs.sym_size(static_cast<int64_t>(l.find(label))) !=
            rhs.sym_size(static_cast<int64_t>(r.find(label)))) {
      return false;
    }
  }
  return are_distinct(l) && are_distinct(r) && are_distinct(pair.result);
}

// The equation of two operands that are no more than multiplied and summed over what they share,
// or nullopt.
std::optional<Pair> parse(c10::string_view equation, const Tensor& lhs, const Tensor& rhs) {
  const std::string text = select(std::string(equation), [](char c) { return c != ' '; });
  const auto arrow = text.find("->");
  const std::string both = text.substr(0, arrow);
  const auto comma = both.find(',');
  if (comma == std::string::npos) return std::nullopt;
  Pair pair{{both.substr(0, comma), both.substr(comma + 1)},
            arrow == std::string::npos ? implied_result(both) : text.substr(arrow + 2)};
  std::string unused;
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    if (!has(text, letter)) unused += letter;
  }
  const int64_t count = std::max(ellipsis_rank(pair.operands[0], lhs.dim()),
                                 ellipsis_rank(pair.operands[1], rhs.dim()));
  if (count < 0 || count > static_cast<int64_t>(unused.size())) return std::nullopt;
  const std::string letters = unused.substr(0, count);
  const auto ellipsis = pair.result.find(kEllipsis);
  if (ellipsis != std::string::npos) pair.result.replace(ellipsis, 3, letters);
  const auto is_letter = [](unsigned char c) { return std::isalpha(c) != 0; };
  const bool valid = spell_out(pair.operands[0], lhs.dim(), letters) &&
                     spell_out(pair.operands[1], rhs.dim(), letters) &&
                     std::all_of(pair.result.begin(), pair.result.end(), is_letter);
  return valid && is_plain(pair, lhs, rhs) ? std::optional<Pair>(std::move(pair)) : std::nullopt;
}

// Saves the two operands.
class WideEinsum final : public Formula {
 public:
  explicit WideEinsum(Pair labels) : pair(std::move(labels)) {}
  std::string name() const override { return "WideEinsumBackward0"; }

  void differentiate(const Tensor& grad, const variable_list& saved, const Wants& wants,
                     variable_list& results) const override {
    for (size_t i = 0; i < 2; ++i) {
      if (!wants.any[i]) continue;
      results[i] = wants.wide[i] ? wide_gradient(grad, saved[1 - i], i)
                                 : at::_ops::einsum::call(pair.equation_of_gradient(i),
                                                          {grad, saved[1 - i]}, std::nullopt);
    }
  }
  std::vector<c10::IValue> constants() const override {
    return {pair.operands[0], pair.operands[1], pair.result};
  }

 private:
  Tensor wide_gradient(const Tensor& grad, const Tensor& other, size_t which) const {
    const std::string &l = pair.result, &r = pair.operands[1 - which];
    const std::string& wanted = pair.operands[which];
    const auto shared = select(l, [&](char label) { return has(r, label); });
    const auto batch = select(shared, [&](char label) { return has(wanted, label); });
    const auto summed = select(shared, [&](char label) { return !has(wanted, label); });
    const auto of_grad = select(l, [&](char label) { return !has(r, label); });
    const auto of_other = select(r, [&](char label) { return !has(l, label); });
    // The order that needs no permutation, if one of the two does not.
    const bool swap = batch + of_other + of_grad == wanted;
    const Tensor product = swap ? contract(other, grad, positions(summed, r), positions(summed, l),
                                           positions(batch, r), positions(batch, l))
                                : contract(grad, other, positions(summed, l), positions(summed, r),
                                           positions(batch, l), positions(batch, r));
    const std::string made = swap ? wanted : batch + of_grad + of_other;
    return made == wanted ? product : product.permute(positions(wanted, made));
  }

  const Pair pair;
};

// Any einsum as permutations and bmm, whose kernel is in wide_matmul.cpp.
Tensor by_way_of_bmm(c10::string_view equation, at::TensorList tensors,
                     at::OptionalIntArrayRef path) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow(at::_ops::einsum::name, "")
                             .typed<at::_ops::einsum::schema>();
  // Where torch keeps its composite kernel: the keys of the operands are not looked at.
  return op.redispatch(DispatchKeySet(DispatchKey::AutogradCPU), equation, tensors, path);
}

Tensor einsum(DispatchKeySet keys, c10::string_view equation, at::TensorList tensors,
              at::OptionalIntArrayRef path) {
  const auto is_any = [&](const auto& predicate) {
    return std::any_of(tensors.begin(), tensors.end(), predicate);
  };
  if (!in_use() || !is_any([](const Tensor& t) { return is_wide(t); }) ||
      is_any([](const Tensor& t) { return has_forward_gradient(t); })) {
    return Overridden<at::_ops::einsum>::call(keys, equation, tensors, path);
  }
  // Of weights alone: bmm hands on.
  if (std::all_of(tensors.begin(), tensors.end(), [](const Tensor& t) { return is_wide(t); })) {
    return by_way_of_bmm(equation, tensors, path);
  }
  auto pair = tensors.size() == 2 ? parse(equation, tensors[0], tensors[1]) : std::nullopt;
  if (!pair) return by_way_of_bmm(equation, tensors, path);
  const auto node =
      make_node(std::make_shared<const WideEinsum>(std::move(*pair)), tensors[0], tensors[1]);
  node->save_factors(0, tensors[0], tensors[1]);
  return record(node, [&] {
    return at::_ops::einsum::redispatch(keys & c10::after_autograd_keyset, equation, tensors, path);
  });
}

}  // namespace

void register_einsum(torch::Library& library) {
  override_kernel<at::_ops::einsum>(library, TORCH_FN(einsum));
}

}  // namespace torch_xla::wide_weight_grad
