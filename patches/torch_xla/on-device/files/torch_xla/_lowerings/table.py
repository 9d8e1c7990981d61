"""Which function computes which operator: ``aten::<operator>``, and module and function.

A function gets all arguments of the operator's schema by position, bfloat16 and float16 tensors as float32. Where it
returns NotImplemented the kernel that the operator has without castoff is called: torch_xla's, or the CPU's. Where it
is `common.only` for some calls, that is found out before anything is widened; for operators that torch_xla lowers as
well, before anything of Python runs: csrc/castoff/lowering_table.cpp has their conditions.
"""

TABLE = {
    # functions of elements
    "_efficientzerotensor": "elementwise.zeros",
    "channel_shuffle": "elementwise.channel_shuffle",
    "angle": "elementwise.angle",
    "complex": "elementwise.complex",
    "copysign.Tensor": "elementwise.copysign",
    "exp2": "elementwise.exp2",
    "fmax": "elementwise.fmax",
    "fmin": "elementwise.fmin",
    "frexp.Tensor": "elementwise.frexp",
    "gcd": "elementwise.gcd",
    "heaviside": "elementwise.heaviside",
    "hypot": "elementwise.hypot",
    "isposinf": "elementwise.isposinf",
    "lcm": "elementwise.lcm",
    "logaddexp": "elementwise.logaddexp",
    "logaddexp2": "elementwise.logaddexp2",
    "nextafter": "elementwise.nextafter",
    "polar": "elementwise.polar",
    "round.decimals": "elementwise.round_decimals",
    "signbit": "elementwise.signbit",
    "sinc": "elementwise.sinc",
    "view_copy.dtype": "bits.view_as_dtype",
    "special_entr": "elementwise.entr",
    "special_xlog1py": "elementwise.xlog1py",
    # special functions
    "digamma": "special.digamma",
    "i0": "special.i0",
    "igamma": "gamma.igamma",
    "igammac": "gamma.igammac",
    "lgamma": "special.lgamma",
    "polygamma": "special.polygamma",
    "special_airy_ai": "special.airy_ai",
    "special_bessel_j0": "special.j0",
    "special_bessel_j1": "special.j1",
    "special_bessel_y0": "special.y0",
    "special_bessel_y1": "special.y1",
    "special_chebyshev_polynomial_t": "special.chebyshev_t",
    "special_chebyshev_polynomial_u": "special.chebyshev_u",
    "special_chebyshev_polynomial_v": "special.chebyshev_v",
    "special_chebyshev_polynomial_w": "special.chebyshev_w",
    "special_erfcx": "special.erfcx",
    "special_hermite_polynomial_h": "special.hermite_h",
    "special_hermite_polynomial_he": "special.hermite_he",
    "special_i0e": "special.i0e",
    "special_i1": "special.i1",
    "special_i1e": "special.i1e",
    "special_laguerre_polynomial_l": "special.laguerre_l",
    "special_legendre_polynomial_p": "special.legendre_p",
    "special_log_ndtr": "special.log_ndtr",
    "special_modified_bessel_i0": "special.i0",
    "special_modified_bessel_i1": "special.i1",
    "special_modified_bessel_k0": "special.k0",
    "special_modified_bessel_k1": "special.k1",
    "special_ndtri": "special.ndtri",
    "special_scaled_modified_bessel_k0": "special.scaled_k0",
    "special_scaled_modified_bessel_k1": "special.scaled_k1",
    "special_shifted_chebyshev_polynomial_t": "special.shifted_chebyshev_t",
    "special_shifted_chebyshev_polynomial_u": "special.shifted_chebyshev_u",
    "special_shifted_chebyshev_polynomial_v": "special.shifted_chebyshev_v",
    "special_shifted_chebyshev_polynomial_w": "special.shifted_chebyshev_w",
    "special_spherical_bessel_j0": "special.spherical_j0",
    "special_zeta": "gamma.zeta",
    # factories
    "linspace.Scalar_Tensor": "composites.linspace",
    "linspace.Tensor_Scalar": "composites.linspace",
    "linspace.Tensor_Tensor": "composites.linspace",
    "logspace": "composites.logspace",
    "logspace.Scalar_Tensor": "composites.logspace",
    "logspace.Tensor_Scalar": "composites.logspace",
    "logspace.Tensor_Tensor": "composites.logspace",
    "tril_indices": "composites.tril_indices",
    "triu_indices": "composites.triu_indices",
    # sums, products and scans
    "_logcumsumexp": "elementwise.logcumsumexp",
    "addbmm": "elementwise.addbmm",
    "addmv": "elementwise.addmv",
    "aminmax": "elementwise.aminmax",
    "cumprod": "elementwise.cumprod",
    "isin.Scalar_Tensor": "elementwise.isin",
    "isin.Tensor_Scalar": "elementwise.isin",
    "isin.Tensor_Tensor": "elementwise.isin",
    "linalg_cross": "elementwise.linalg_cross",
    "logcumsumexp": "elementwise.logcumsumexp",
    "nansum": "elementwise.nansum",
    "renorm": "elementwise.renorm",
    "vdot": "elementwise.vdot",
    # Fourier transforms
    "_fft_c2c": "fourier.fft_c2c",
    "_fft_c2r": "fourier.fft_c2r",
    "_fft_r2c": "fourier.fft_r2c",
    "_conj_physical": "fourier.conj_physical",
    # random numbers
    "_dirichlet_grad": "implicit.dirichlet_grad",
    "_sample_dirichlet": "sampling.sample_dirichlet",
    "_standard_gamma": "sampling.standard_gamma",
    "_standard_gamma_grad": "implicit.standard_gamma_grad",
    "binomial": "sampling.binomial",
    "cauchy": "drawing.cauchy",
    "geometric": "drawing.geometric",
    "log_normal": "drawing.log_normal",
    "multinomial": "sampling.multinomial",
    "poisson": "sampling.poisson",
    "rrelu_with_noise_functional": "drawing.rrelu",
    # linear algebra
    "_cholesky_solve_helper": "linalg.cholesky_solve",
    "_linalg_det": "linalg.det",
    "_linalg_slogdet": "linalg.slogdet",
    "_linalg_solve_ex": "linalg.solve_ex",
    "cholesky_inverse": "linalg.cholesky_inverse",
    "geqrf": "linalg.geqrf",
    "linalg_cholesky_ex": "linalg.cholesky_ex",
    "linalg_householder_product": "linalg.householder_product",
    "linalg_inv_ex": "linalg.inv_ex",
    "linalg_ldl_factor_ex": "linalg.ldl_factor_ex",
    "linalg_ldl_solve": "linalg.ldl_solve",
    "linalg_lstsq": "linalg.lstsq",
    "linalg_lu": "linalg.lu",
    "linalg_lu_factor_ex": "linalg.lu_factor_ex",
    "linalg_lu_solve": "linalg.lu_solve",
    "linalg_matrix_exp": "linalg.matrix_exp",
    "linalg_qr": "linalg.qr",
    "linalg_solve_triangular": "linalg.solve_triangular",
    "lu_unpack": "linalg.lu_unpack",
    "ormqr": "linalg.ormqr",
    # interpolation
    "_upsample_bicubic2d_aa": "resampling.antialiased_cubic",
    "_upsample_bicubic2d_aa_backward": "resampling.antialiased_cubic_backward",
    "_upsample_bilinear2d_aa": "resampling.antialiased_linear",
    "_upsample_bilinear2d_aa_backward": "resampling.antialiased_linear_backward",
    "_upsample_nearest_exact1d": "resampling.nearest_exact",
    "_upsample_nearest_exact1d_backward": "resampling.nearest_exact_backward",
    "_upsample_nearest_exact2d": "resampling.nearest_exact",
    "_upsample_nearest_exact2d_backward": "resampling.nearest_exact_backward",
    "_upsample_nearest_exact3d": "resampling.nearest_exact",
    "_upsample_nearest_exact3d_backward": "resampling.nearest_exact_backward",
    "upsample_bicubic2d": "resampling.cubic",
    "upsample_bicubic2d_backward": "resampling.cubic_backward",
    "upsample_bilinear2d_backward": "resampling.bilinear2d_backward",
    "upsample_linear1d": "resampling.linear",
    "upsample_linear1d_backward": "resampling.linear_backward",
    "upsample_nearest1d": "resampling.nearest",
    "upsample_nearest1d_backward": "resampling.nearest_backward",
    "upsample_nearest2d_backward": "resampling.nearest2d_backward",
    "upsample_nearest3d": "resampling.nearest",
    "upsample_nearest3d_backward": "resampling.nearest_backward",
    "upsample_trilinear3d_backward": "resampling.linear_backward",
    # positions and windows
    "col2im": "resampling.col2im",
    "grid_sampler_2d": "resampling.grid_sampler",
    "grid_sampler_2d_backward": "resampling.grid_sampler_backward",
    "grid_sampler_3d": "resampling.grid_sampler",
    "grid_sampler_3d_backward": "resampling.grid_sampler_backward",
    "im2col": "resampling.im2col",
    "unfold_backward": "resampling.unfold_backward",
    "unfold_copy": "resampling.unfold_copy",
    # pooling
    "_adaptive_avg_pool2d": "pooling.adaptive_avg_pool",
    "_adaptive_avg_pool2d_backward": "pooling.adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d": "pooling.adaptive_avg_pool",
    "_adaptive_avg_pool3d_backward": "pooling.adaptive_avg_pool3d_backward",
    "adaptive_max_pool2d": "pooling.adaptive_max_pool",
    "adaptive_max_pool2d_backward": "pooling.adaptive_max_pool2d_backward",
    "adaptive_max_pool3d": "pooling.adaptive_max_pool",
    "adaptive_max_pool3d_backward": "pooling.adaptive_max_pool3d_backward",
    "avg_pool2d_backward": "pooling.avg_pool2d_backward",
    "avg_pool3d_backward": "pooling.avg_pool3d_backward",
    "fractional_max_pool2d": "pooling.fractional_max_pool2d",
    "fractional_max_pool2d_backward": "pooling.fractional_max_pool2d_backward",
    "fractional_max_pool3d": "pooling.fractional_max_pool3d",
    "fractional_max_pool3d_backward": "pooling.fractional_max_pool3d_backward",
    "max_pool2d_with_indices": "pooling.max_pool2d",
    "max_pool2d_with_indices_backward": "pooling.max_pool2d_backward",
    "max_pool3d_with_indices": "pooling.max_pool3d",
    "max_pool3d_with_indices_backward": "pooling.max_pool3d_backward",
    # losses, distances, normalization and activations
    "_batch_norm_with_update_functional": "normalization.batch_norm_with_update",
    "_ctc_loss": "alignment.ctc_loss",
    "_ctc_loss.Tensor": "alignment.ctc_loss_of_tensors",
    "_ctc_loss_backward": "alignment.ctc_loss_backward",
    "_ctc_loss_backward.Tensor": "alignment.ctc_loss_backward_of_tensors",
    "_cdist_backward": "distances.cdist_backward",
    "_pdist_backward": "distances.pdist_backward",
    "_weight_norm_interface": "normalization.weight_norm",
    "_weight_norm_interface_backward": "normalization.weight_norm_backward",
    "batch_norm_backward": "normalization.batch_norm_backward",
    "glu_backward": "losses.glu_backward",
    "huber_loss": "losses.huber_loss",
    "huber_loss_backward": "losses.huber_loss_backward",
    "logit_backward": "losses.logit_backward",
    "multi_margin_loss": "losses.multi_margin_loss",
    "multi_margin_loss_backward": "losses.multi_margin_loss_backward",
    "multilabel_margin_loss_backward": "losses.multilabel_margin_loss_backward",
    "multilabel_margin_loss_forward": "losses.multilabel_margin_loss",
    # quantization
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": "quantization.per_tensor_of_tensors",
    "fake_quantize_per_channel_affine_cachemask": "quantization.per_channel",
    "fake_quantize_per_tensor_affine_cachemask": "quantization.per_tensor",
    # sorting and searching
    "bucketize.Scalar": "selection.bucketize",
    "bucketize.Tensor": "selection.bucketize",
    "cummax": "selection.cummax",
    "cummin": "selection.cummin",
    "median": "selection.median",
    "median.dim": "selection.median_dim",
    "mode": "selection.mode",
    "nanmedian": "selection.nanmedian",
    "nanmedian.dim": "selection.nanmedian_dim",
    "nonzero_static": "selection.nonzero_static",
    "repeat_interleave.Tensor": "selection.repeat_interleave",
    "searchsorted.Scalar": "selection.searchsorted",
    "searchsorted.Tensor": "selection.searchsorted",
    # reductions by index
    "_embedding_bag": "scattering.embedding_bag",
    "_embedding_bag_backward": "scattering.embedding_bag_backward",
    "_embedding_bag_forward_only": "scattering.embedding_bag",
    "_embedding_bag_per_sample_weights_backward": "scattering.embedding_bag_weights_backward",
    "embedding_renorm": "scattering.embedding_renorm",
    "index_reduce": "scattering.index_reduce",
    "masked_scatter": "scattering.masked_scatter",
    "masked_scatter_backward": "scattering.masked_scatter_backward",
    "scatter_reduce.two": "scattering.scatter_reduce",
    "_segment_reduce_backward": "scattering.segment_reduce_backward",
    "segment_reduce": "scattering.segment_reduce",
    # histograms
    "_histogramdd_bin_edges": "histograms.histogramdd_edges",
    "_histogramdd_from_bin_cts": "histograms.histogramdd",
    "_histogramdd_from_bin_tensors": "histograms.histogramdd_of_bins",
    "histogram.bin_ct": "histograms.histogram",
    "histogram.bins_tensor": "histograms.histogram_of_bins",
}

#: Of operators that a release of torch_xla may lower itself, or torch not have: where these are for the CPU.
LOWERED_SINCE = {
    "_conj_copy": "fourier.conj_copy",
    "bitwise_left_shift.Tensor": "elementwise.left_shift",
    "bitwise_right_shift.Tensor": "elementwise.right_shift",
    "hash_tensor": "elementwise.hash_tensor",
    "isneginf": "elementwise.isneginf",
}

#: Of operators for which torch_xla has a gradient of its own, or torch none: functions that autograd sees.
DIFFERENTIABLE = {
    "_linalg_det": "linalg.contiguous_det",
    "_linalg_slogdet": "linalg.contiguous_slogdet",
    "_linalg_solve_ex": "linalg.contiguous_solve_ex",
    "index_fill.int_Tensor": "scattering.index_fill",
    "max_pool2d": "pooling.dilated_max_pool2d",
    "max_pool3d": "pooling.dilated_max_pool3d",
}

#: Of operators that torch makes of others: functions that autograd sees, and inference mode, which goes past it.
COMPOSITE = {
    "combinations": "composites.combinations",
    "cov": "composites.cov",
}

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
