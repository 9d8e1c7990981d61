"""Which function computes which operator: by module, the operators ``aten::<operator>`` of its functions.

A function gets all arguments of the operator's schema by position, bfloat16 and float16 tensors as float32. Where it
returns NotImplemented the kernel that the operator has without castoff is called: torch_xla's, or the CPU's. Where it
is `common.only` for some calls, that is found out before anything is widened; for operators that torch_xla lowers as
well, before anything of Python runs: csrc/castoff/lowering_table.cpp has their conditions.
"""


def _places(**operators_of: str) -> dict[str, str]:
    """{operator: "module.function"}; where the function has another name than the operator: ``operator=function``."""
    return {
        operator: f"{module}.{function or _plain(operator)}"
        for module, entries in operators_of.items()
        for operator, _, function in (entry.partition("=") for entry in entries.split())
    }


def _plain(operator: str) -> str:
    """An operator's name without its overload and what says where torch has it."""
    return operator.partition(".")[0].lstrip("_").removeprefix("special_").removeprefix("linalg_")


TABLE = _places(
    alignment=(
        "_ctc_loss _ctc_loss.Tensor=ctc_loss_of_tensors _ctc_loss_backward "
        "_ctc_loss_backward.Tensor=ctc_loss_backward_of_tensors"
    ),
    bits="view_copy.dtype=view_as_dtype",
    composites=(
        "linspace.Scalar_Tensor linspace.Tensor_Scalar linspace.Tensor_Tensor logspace logspace.Scalar_Tensor "
        "logspace.Tensor_Scalar logspace.Tensor_Tensor tril_indices triu_indices"
    ),
    distances="_cdist_backward _pdist_backward",
    drawing="cauchy geometric log_normal rrelu_with_noise_functional=rrelu",
    elementwise=(
        "addbmm addmv aminmax angle channel_shuffle complex copysign.Tensor cumprod _efficientzerotensor=zeros exp2 "
        "fmax fmin frexp.Tensor gcd heaviside hypot isin.Scalar_Tensor isin.Tensor_Scalar isin.Tensor_Tensor "
        "isposinf lcm linalg_cross logaddexp logaddexp2 _logcumsumexp logcumsumexp nansum nextafter "
        "polar renorm round.decimals=round_decimals signbit sinc special_entr special_xlog1py vdot"
    ),
    fourier="_conj_physical _fft_c2c _fft_c2r _fft_r2c",
    gamma="igamma igammac special_zeta",
    histograms=(
        "histogram.bin_ct histogram.bins_tensor=histogram_of_bins _histogramdd_bin_edges=histogramdd_edges "
        "_histogramdd_from_bin_cts=histogramdd _histogramdd_from_bin_tensors=histogramdd_of_bins"
    ),
    implicit="_dirichlet_grad _standard_gamma_grad",
    linalg=(
        "cholesky_inverse _cholesky_solve_helper=cholesky_solve geqrf linalg_cholesky_ex _linalg_det "
        "linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu "
        "linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_qr _linalg_slogdet _linalg_solve_ex "
        "linalg_solve_triangular lu_unpack ormqr"
    ),
    losses=(
        "glu_backward huber_loss huber_loss_backward logit_backward multi_margin_loss multi_margin_loss_backward "
        "multilabel_margin_loss_backward multilabel_margin_loss_forward=multilabel_margin_loss"
    ),
    normalization=(
        "batch_norm_backward _batch_norm_with_update_functional=batch_norm_with_update "
        "_weight_norm_interface=weight_norm _weight_norm_interface_backward=weight_norm_backward"
    ),
    pooling=(
        "_adaptive_avg_pool2d=adaptive_avg_pool _adaptive_avg_pool2d_backward "
        "_adaptive_avg_pool3d=adaptive_avg_pool _adaptive_avg_pool3d_backward adaptive_max_pool2d=adaptive_max_pool "
        "adaptive_max_pool2d_backward adaptive_max_pool3d=adaptive_max_pool adaptive_max_pool3d_backward "
        "avg_pool2d_backward avg_pool3d_backward fractional_max_pool2d fractional_max_pool2d_backward "
        "fractional_max_pool3d fractional_max_pool3d_backward max_pool2d_with_indices=max_pool2d "
        "max_pool2d_with_indices_backward=max_pool2d_backward max_pool3d_with_indices=max_pool3d "
        "max_pool3d_with_indices_backward=max_pool3d_backward"
    ),
    quantization=(
        "fake_quantize_per_channel_affine_cachemask=per_channel "
        "fake_quantize_per_tensor_affine_cachemask=per_tensor "
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams=per_tensor_of_tensors"
    ),
    resampling=(
        "col2im grid_sampler_2d=grid_sampler grid_sampler_2d_backward=grid_sampler_backward "
        "grid_sampler_3d=grid_sampler grid_sampler_3d_backward=grid_sampler_backward im2col unfold_backward "
        "unfold_copy upsample_bicubic2d=cubic _upsample_bicubic2d_aa=antialiased_cubic "
        "_upsample_bicubic2d_aa_backward=antialiased_cubic_backward upsample_bicubic2d_backward=cubic_backward "
        "_upsample_bilinear2d_aa=antialiased_linear _upsample_bilinear2d_aa_backward=antialiased_linear_backward "
        "upsample_bilinear2d_backward=bilinear2d_backward upsample_linear1d=linear "
        "upsample_linear1d_backward=linear_backward upsample_nearest1d=nearest "
        "upsample_nearest1d_backward=nearest_backward upsample_nearest2d_backward=nearest2d_backward "
        "upsample_nearest3d=nearest upsample_nearest3d_backward=nearest_backward "
        "_upsample_nearest_exact1d=nearest_exact _upsample_nearest_exact1d_backward=nearest_exact_backward "
        "_upsample_nearest_exact2d=nearest_exact _upsample_nearest_exact2d_backward=nearest_exact_backward "
        "_upsample_nearest_exact3d=nearest_exact _upsample_nearest_exact3d_backward=nearest_exact_backward "
        "upsample_trilinear3d_backward=linear_backward"
    ),
    sampling="binomial multinomial poisson _sample_dirichlet _standard_gamma",
    scattering=(
        "_embedding_bag _embedding_bag_backward _embedding_bag_forward_only=embedding_bag "
        "_embedding_bag_per_sample_weights_backward=embedding_bag_weights_backward embedding_renorm index_reduce "
        "masked_scatter masked_scatter_backward scatter_reduce.two segment_reduce _segment_reduce_backward"
    ),
    selection=(
        "bucketize.Scalar bucketize.Tensor cummax cummin median median.dim=median_dim mode nanmedian "
        "nanmedian.dim=nanmedian_dim nonzero_static repeat_interleave.Tensor searchsorted.Scalar "
        "searchsorted.Tensor"
    ),
    special=(
        "digamma i0 lgamma polygamma special_airy_ai special_bessel_j0=j0 special_bessel_j1=j1 special_bessel_y0=y0 "
        "special_bessel_y1=y1 special_chebyshev_polynomial_t=chebyshev_t special_chebyshev_polynomial_u=chebyshev_u "
        "special_chebyshev_polynomial_v=chebyshev_v special_chebyshev_polynomial_w=chebyshev_w special_erfcx "
        "special_hermite_polynomial_h=hermite_h special_hermite_polynomial_he=hermite_he special_i0e special_i1 "
        "special_i1e special_laguerre_polynomial_l=laguerre_l special_legendre_polynomial_p=legendre_p "
        "special_log_ndtr special_modified_bessel_i0=i0 special_modified_bessel_i1=i1 special_modified_bessel_k0=k0 "
        "special_modified_bessel_k1=k1 special_ndtri special_scaled_modified_bessel_k0=scaled_k0 "
        "special_scaled_modified_bessel_k1=scaled_k1 special_shifted_chebyshev_polynomial_t=shifted_chebyshev_t "
        "special_shifted_chebyshev_polynomial_u=shifted_chebyshev_u "
        "special_shifted_chebyshev_polynomial_v=shifted_chebyshev_v "
        "special_shifted_chebyshev_polynomial_w=shifted_chebyshev_w special_spherical_bessel_j0=spherical_j0"
    ),
)

#: Of operators that a release of torch_xla may lower itself, or torch not have: where these are for the CPU.
LOWERED_SINCE = _places(
    elementwise="bitwise_left_shift.Tensor=left_shift bitwise_right_shift.Tensor=right_shift hash_tensor isneginf",
    fourier="_conj_copy",
)

#: Functions that are called with the kernel that the operator had, and the arguments as they are.
DIRECT = _places(maxima="amax amin max max.dim=max_dim min min.dim=min_dim")

#: Of operators for which torch_xla has a gradient of its own, or torch none: functions that autograd sees.
DIFFERENTIABLE = _places(
    linalg="_linalg_det=contiguous_det _linalg_slogdet=contiguous_slogdet _linalg_solve_ex=contiguous_solve_ex",
    pooling="max_pool2d=dilated_max_pool2d max_pool3d=dilated_max_pool3d",
    scattering="index_fill.int_Tensor",
)

#: Of operators that torch makes of others: functions that autograd sees, and inference mode, which goes past it.
COMPOSITE = _places(
    composites="combinations cov",
)

#: Operators whose first argument torch's kernels refuse in these dtypes; the functions above would compute something.
REFUSED = {
    "complex": (
        "_adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d bucketize.Tensor copysign.Tensor cummax cummin "
        "fmax fmin frexp.Tensor gcd grid_sampler_2d grid_sampler_3d heaviside histogram.bin_ct huber_loss hypot i0 "
        "igamma igammac isin.Tensor_Tensor isneginf isposinf lcm logaddexp2 max_pool2d max_pool2d_with_indices "
        "max_pool3d max_pool3d_with_indices median median.dim multi_margin_loss multilabel_margin_loss_forward "
        "nanmedian nanmedian.dim nextafter round.decimals searchsorted.Tensor signbit special_airy_ai "
        "special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_entr special_erfcx "
        "special_i0e special_i1 special_i1e special_modified_bessel_i0 special_modified_bessel_i1 "
        "special_modified_bessel_k0 special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 "
        "special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_xlog1py special_zeta"
    ),
    "integral": (
        "_embedding_bag _embedding_bag_forward_only fractional_max_pool2d fractional_max_pool3d grid_sampler_2d "
        "grid_sampler_3d huber_loss hypot igamma igammac im2col logaddexp logaddexp2 logcumsumexp multi_margin_loss "
        "multilabel_margin_loss_forward nextafter round.decimals"
    ),
    "bool": (
        "_embedding_bag _embedding_bag_forward_only addbmm bucketize.Tensor grid_sampler_2d grid_sampler_3d igamma "
        "igammac isin.Tensor_Tensor lcm logcumsumexp median median.dim nanmedian nanmedian.dim round.decimals vdot"
    ),
    "floating": "gcd lcm",
}

#: Of these, the operators that compute in the dtype that torch promotes their first two arguments to.
PROMOTED = "bucketize.Tensor hypot igamma igammac logaddexp logaddexp2 nextafter"
