//! `#[derive(Xdr)]` writes `xdr::Encode` and `xdr::Decode`. The documentation of crate `xdr` has the rules.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Expr, Fields, Generics, Ident, Variant, parse_macro_input, parse_quote};

/// Derives `xdr::Encode` and `xdr::Decode`.
#[proc_macro_derive(Xdr, attributes(xdr))]
pub fn derive_xdr(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    derive(&input).unwrap_or_else(Error::into_compile_error).into()
}

fn derive(input: &DeriveInput) -> syn::Result<TokenStream> {
    let (encode, decode) = match &input.data {
        Data::Struct(data) => struct_bodies(&data.fields),
        Data::Enum(data)
            if data.variants.iter().any(|variant| !variant.attrs.is_empty() && case(variant).is_ok()) =>
        {
            union_bodies(&input.ident, data.variants.iter())?
        }
        Data::Enum(data) => enum_bodies(&input.ident, data.variants.iter())?,
        Data::Union(_) => return Err(Error::new(input.span(), "an XDR union is a Rust enum")),
    };
    Ok(implementations(&input.ident, &input.generics, &encode, &decode))
}

fn implementations(
    name: &Ident,
    generics: &Generics,
    encode: &TokenStream,
    decode: &TokenStream,
) -> TokenStream {
    let with = |bound: syn::TypeParamBound| {
        let mut generics = generics.clone();
        generics.type_params_mut().for_each(|parameter| parameter.bounds.push(bound.clone()));
        generics
    };
    let (encode_generics, decode_generics) =
        (with(parse_quote!(::xdr::Encode)), with(parse_quote!(::xdr::Decode)));
    let (_, arguments, bounds) = generics.split_for_impl();
    let (encode_impl, _, _) = encode_generics.split_for_impl();
    let (decode_impl, _, _) = decode_generics.split_for_impl();
    quote! {
        impl #encode_impl ::xdr::Encode for #name #arguments #bounds {
            fn encode(&self, encoder: &mut ::xdr::Encoder) { #encode }
        }
        impl #decode_impl ::xdr::Decode for #name #arguments #bounds {
            fn decode(decoder: &mut ::xdr::Decoder) -> ::core::result::Result<Self, ::xdr::Error> { #decode }
        }
    }
}

fn struct_bodies(fields: &Fields) -> (TokenStream, TokenStream) {
    let names = fields.members().collect::<Vec<_>>();
    (
        quote! { let _ = &encoder; #(::xdr::Encode::encode(&self.#names, encoder);)* },
        quote! { Ok(Self { #(#names: ::xdr::Decode::decode(decoder)?),* }) },
    )
}

fn enum_bodies<'a>(
    name: &Ident,
    variants: impl Iterator<Item = &'a Variant>,
) -> syn::Result<(TokenStream, TokenStream)> {
    let mut encodes = Vec::new();
    let mut decodes = Vec::new();
    for variant in variants {
        let ident = &variant.ident;
        let Some((_, value)) = &variant.discriminant else {
            return Err(Error::new(
                variant.span(),
                "give the value on the wire: `= N`, or `#[xdr(case = N)]`",
            ));
        };
        encodes.push(quote! { Self::#ident => #value });
        decodes.push(quote! { #value => Ok(Self::#ident) });
    }
    let text = name.to_string();
    Ok((
        quote! { encoder.u32(match self { #(#encodes),* }) },
        quote! { match decoder.u32()? { #(#decodes,)* value => Err(::xdr::Error::Discriminant { name: #text, value }) } },
    ))
}

fn union_bodies<'a>(
    name: &Ident,
    variants: impl Iterator<Item = &'a Variant>,
) -> syn::Result<(TokenStream, TokenStream)> {
    let mut encodes = Vec::new();
    let mut decodes = Vec::new();
    let text = name.to_string();
    let mut otherwise = quote! { value => Err(::xdr::Error::Discriminant { name: #text, value }) };
    for variant in variants {
        let ident = &variant.ident;
        let members = variant.fields.members().collect::<Vec<_>>();
        let bound = (0..members.len()).map(|index| format_ident!("field_{index}")).collect::<Vec<_>>();
        match case(variant)? {
            Case::Value(value) => {
                encodes.push(quote! {
                    Self::#ident { #(#members: #bound),* } => { encoder.u32(#value); #(::xdr::Encode::encode(#bound, encoder);)* }
                });
                decodes.push(
                    quote! { #value => Ok(Self::#ident { #(#members: ::xdr::Decode::decode(decoder)?),* }) },
                );
            }
            Case::Default => {
                let Some((first, rest)) = members.split_first() else {
                    let hint = "the default case holds its discriminant: `Other(u32)`";
                    return Err(Error::new(variant.span(), hint));
                };
                encodes.push(quote! {
                    Self::#ident { #(#members: #bound),* } => { #(::xdr::Encode::encode(#bound, encoder);)* }
                });
                otherwise = quote! { value => Ok(Self::#ident { #first: value, #(#rest: ::xdr::Decode::decode(decoder)?),* }) };
            }
        }
    }
    Ok((quote! { match self { #(#encodes)* } }, quote! { match decoder.u32()? { #(#decodes,)* #otherwise } }))
}

enum Case {
    Value(Box<Expr>),
    Default,
}

fn case(variant: &Variant) -> syn::Result<Case> {
    let mut found = None;
    for attribute in variant.attrs.iter().filter(|attribute| attribute.path().is_ident("xdr")) {
        attribute.parse_nested_meta(|meta| {
            if meta.path.is_ident("default") {
                found = Some(Case::Default);
                Ok(())
            } else if meta.path.is_ident("case") {
                found = Some(Case::Value(Box::new(meta.value()?.parse()?)));
                Ok(())
            } else {
                Err(meta.error("`case = N` or `default`"))
            }
        })?;
    }
    found.ok_or_else(|| {
        Error::new(variant.span(), "each case of a union needs `#[xdr(case = N)]` or `#[xdr(default)]`")
    })
}
